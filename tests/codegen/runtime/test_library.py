"""Loading libraries: calls, threads, the one OpenMP runtime, failures."""

import re
import shutil
import threading
from pathlib import Path

import pytest
import torch

from minidynamo.codegen.runtime import disk_cache, library
from minidynamo.config import config
from minidynamo.errors import KernelBuildError

pytestmark = pytest.mark.cpp

ADD = """#include "launch.h"
ENTRY(add) {
  auto* x = memory<const float>(args[0]);
  auto* out = memory<float>(args[1]);
  if (PyErr_Occurred()) return nullptr;
  for (int64_t i = 0; i < 8; i++) out[i] = x[i] + 1.f;
  return none();
}
"""

# Each element receives the number of the thread that wrote the element.
THREADS = """#include "launch.h"
ENTRY(who) {
  auto* out = memory<int64_t>(args[0]);
  {
    WithoutGil running;
    parallel_for(64, THREADS, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) out[i] = begin == 0 && end == 64 ? 0 : minidynamo_threading.thread();
    });
  }
  return none();
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with config.patch(cache_dir=str(tmp_path)):
        yield


def threads_used(source: str) -> list[int]:
    out = torch.full((64,), -1, dtype=torch.int64)
    library.load(source, ["who"])["who"](out)
    return out.unique().tolist()


def test_a_loaded_entry_is_a_builtin_that_takes_tensors():
    add = library.load(ADD, ["add"])["add"]
    x, out = torch.randn(8), torch.empty(8)
    assert add(x, out) is None
    assert torch.equal(out, x + 1)
    assert type(add) is type(len)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("is_known", [True, False])
def test_entries_find_the_memory_of_every_class_of_tensors(is_known, monkeypatch):
    if not is_known:
        monkeypatch.setattr(library, "_tensors", lambda: [None] * 4)
    add = library.load(ADD, ["add"])["add"]
    x = torch.randn(9)[1:]
    for given in (x, torch.nn.Parameter(x), x.as_subclass(Subclass)):
        out = torch.empty(8)
        add(given, out)
        assert torch.equal(out, x + 1)


def test_an_entry_refuses_other_objects_than_tensors():
    add = library.load(ADD, ["add"])["add"]
    out = torch.zeros(8)
    for arguments in ((None, out), (out, 3), ([], ())):
        with pytest.raises(AttributeError, match="data_ptr"):
            add(*arguments)
    with pytest.raises(RuntimeError):
        add(torch.eye(3).to_sparse(), out)
    assert not out.any()


def test_this_torch_stores_tensors_as_expected():
    assert library._tensors() != [None] * 4


def test_threads_follow_torch_at_run_time():
    source = THREADS.replace("THREADS", "0")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert threads_used(source) == [0]
        torch.set_num_threads(3)
        assert threads_used(source) == [0, 1, 2]
        found: list[list[int]] = []
        worker = threading.Thread(target=lambda: found.append(threads_used(source)))
        worker.start()
        worker.join()
        assert found == [[0, 1, 2]]
    finally:
        torch.set_num_threads(before)


def test_a_fixed_number_of_threads_is_kept():
    assert threads_used(THREADS.replace("THREADS", "2")) == [0, 1]


def openmp_runtimes() -> set[str]:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in mapped if re.search(r"/lib\w*omp[^/]*\.so", path)}


def test_a_kernel_shares_the_openmp_runtime_of_torch():
    before = openmp_runtimes()
    threads_used(THREADS.replace("THREADS", "2"))
    assert openmp_runtimes() == before
    assert any(path.startswith(str(Path(torch.__file__).parent)) for path in before)


def test_a_damaged_library_is_built_again(tmp_path):
    library.load(ADD, ["add"])
    ((_, stored),) = disk_cache.entries()
    stored.chmod(0o644)
    stored.with_suffix(".tmp").write_bytes(stored.read_bytes()[:100])
    stored.with_suffix(".tmp").replace(stored)
    add = library.load(ADD, ["add"])["add"]
    x, out = torch.randn(8), torch.empty(8)
    add(x, out)
    assert torch.equal(out, x + 1)


def test_an_entry_that_never_was_a_library_is_built_again():
    library.load(ADD, ["add"])
    ((_, stored),) = disk_cache.entries()
    # The digest is correct, but the file is no library: only dlopen can detect the damage.
    stored.unlink()
    text = b"not a library"
    (stored.parent / "part").write_bytes(text)
    (stored.parent / "part").rename(stored.parent / f"{disk_cache._digest(stored.parent / 'part')}.so")
    assert library.load(ADD, ["add"])["add"] is not None


def test_a_refused_source_names_command_message_and_file():
    with pytest.raises(KernelBuildError) as caught:
        library.load(ADD.replace("out[i] =", "nothing[i] ="), ["add"])
    text = str(caught.value)
    assert caught.value.code == "MD502"
    assert "nothing" in text and "-O3" in text
    source = re.search(r"The source is (\S+);", text)[1]
    assert "nothing" in Path(source).read_text()
    shutil.rmtree(Path(source).parent)
    assert list(disk_cache.entries()) == []


def test_comments_build_nothing_new():
    library.load(ADD, ["add"])
    library.load(ADD.replace("  for", "  // train.py:3 in step: x + 1\n  for"), ["add"])
    assert len(list(disk_cache.entries())) == 1
    assert library.without_comments("a;  // b\n  // c\n\t//\nd;\n") == "a;  // b\nd;\n"
