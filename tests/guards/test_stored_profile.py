"""The profile of a job outlives the process, and a damaged profile costs a notice."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import types
import warnings
from typing import Any

import pytest

import minidynamo
from minidynamo.core import artifacts
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import UnknownName
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.stored_profile import code_key, path_of_job, recall, remember


@pytest.fixture(autouse=True)
def job(tmp_path: pathlib.Path, md_reset: Any) -> Any:
    with minidynamo.config.patch(cache_dir=str(tmp_path), profile="job"):
        yield


def double(x: Any) -> Any:
    return x * 2


def seen(**sizes: int) -> FrameProfile:
    profile = FrameProfile()
    for name, size in sizes.items():
        profile.layout(name, (size, 2), (2, 1))
    return profile


def recalled(fn: types.FunctionType = double) -> FrameProfile:
    profile = FrameProfile()
    recall(fn, "0", profile)
    return profile


def test_what_was_seen_is_joined_with_what_is_stored() -> None:
    remember(double, "0", seen(x=3, y=5))
    remember(double, "0", seen(x=4))
    remember(double, "1", seen(z=4))
    assert recalled().tensors == {"x": ((None, 2), ("S(1)", 1)), "y": ((5, 2), ("S(1)", 1))}
    content = json.loads(path_of_job().read_text())
    (frame,) = content["frames"].values()
    assert frame["points"]["0"]["tensors"]["x"] == {"size": ["?", 2], "stride": ["S(1)", 1]}
    assert frame["name"].startswith("double (test_stored_profile.py:")


def test_without_a_name_nothing_is_stored(tmp_path: pathlib.Path) -> None:
    compiled = minidynamo.compile(double, backend="eager")
    with minidynamo.config.patch(profile=""):
        compiled(3)
    assert not (tmp_path / "profiles").exists()
    minidynamo.reset(compiled)
    compiled(3)
    assert (tmp_path / "profiles").exists()


def test_what_two_write_at_once_is_kept_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[threading.Thread] = []
    write = artifacts.write_bytes

    def write_late(path: pathlib.Path, content: bytes) -> None:
        if not others:
            others.append(threading.Thread(target=remember, args=(double, "other", seen(y=5))))
            others[0].start()
            others[0].join(0.2)  # would finish if it did not have to wait
        write(path, content)

    monkeypatch.setattr(artifacts, "write_bytes", write_late)
    remember(double, "0", seen(x=3))
    others[0].join()
    (frame,) = json.loads(path_of_job().read_text())["frames"].values()
    assert sorted(frame["points"]) == ["0", "other"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99, "frames": {}}', '{"frames": 3}'])
def test_a_damaged_file_is_told_once_and_replaced(text: str) -> None:
    path = path_of_job()
    path.parent.mkdir()
    path.write_text(text)
    with pytest.warns(MinidynamoNotice, match="MD603 the profile job.json cannot be used"):
        assert recalled().tensors == {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        remember(double, "0", seen(x=3))
    assert recalled().tensors


def test_a_folder_that_cannot_be_written_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with pytest.warns(MinidynamoNotice, match="MD603"):
        remember(double, "0", seen(x=3))


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "a b"])
def test_names_of_jobs_are_names_of_files(name: str) -> None:
    with minidynamo.config.patch(profile=name), pytest.raises(UnknownName, match="MD603"):
        path_of_job()


def test_functions_are_told_apart_by_what_they_close_over_not_by_where_their_file_is(tmp_path: pathlib.Path) -> None:
    def around(fn: Any) -> Any:
        return lambda x: fn(x)

    def one(x: Any) -> Any:
        return x + 1

    def two(x: Any) -> Any:
        return x + 2

    assert code_key(around(one)) == code_key(around(one)) != code_key(around(two))
    keys = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "program.py"
        path.parent.mkdir()
        path.write_text("def f(x): return x\n")
        namespace: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        keys.append(code_key(namespace["f"]))
    assert keys[0] == keys[1]


# Behaviour checks, all in the same two processes, whose hash seeds differ

PROCESS = """
import json, pathlib, sys, torch, minidynamo

for path in sorted(pathlib.Path(sys.argv[1]).glob("*/program.py")):
    with minidynamo.config.patch(cache_dir=str(path.parent / "cache"), profile="job"):
        namespace = {"torch": torch, "minidynamo": minidynamo}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        f = namespace["f"]
        sizes = [
            str(n.meta["example_value"].shape[0]) for g in f.graphs for n in g.graph.nodes if n.op == "placeholder"
        ]
        found = [f.stats.graphs, sizes, [f.stats.cache_hits, f.stats.cache_misses], f.profile().splitlines()]
        print(json.dumps([path.parent.name, found]))
"""
PROGRAM = """
{definition}
f = minidynamo.compile(program, backend={backend!r})
for z, x in {calls}:
    f(torch.randn(z), torch.randn(x, 2))
"""
LOOP = """
def program({z}, {x}):
    for _ in range({z}.shape[0]):
        {x} = {x} + 1
    return {x}
"""
CLOSURE = """
def make(scale):
    def program(z, x):
        return (x * scale).sum() + z.sum()
    return program

program = make(3.0)
"""
CALLS = [(3, 5), (3, 6), (3, 7), (4, 8), (4, 9)]
PROGRAMS = {
    "eager": PROGRAM.format(definition=LOOP.format(z="z", x="x"), calls=CALLS, backend="eager"),
    "native": PROGRAM.format(definition=LOOP.format(z="z", x="x"), calls=CALLS, backend="native"),
    # The hashes of both names collide: as long as a0 has a symbol, a46 has the next symbol.
    "renamed": PROGRAM.format(definition=LOOP.format(z="a0", x="a46"), calls=CALLS, backend="native"),
    "closure": PROGRAM.format(definition=CLOSURE, calls=CALLS[:3], backend="eager"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / name).mkdir()
        (folder / name / "program.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def runs(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the findings of each program in the first and in the second process: graphs, sizes, hits and misses,
    profile."""
    return run(folder, 1), run(folder, 2)


def run(folder: pathlib.Path, seed: int) -> dict[str, Any]:
    environment = {"PYTHONPATH": str(pathlib.Path(minidynamo.__file__).parent.parent)}
    environment |= {"PYTHONHASHSEED": str(seed), "PATH": os.environ["PATH"]}  # where the linker is
    command = [sys.executable, "-c", PROCESS, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines())


def test_SYM_4_SYM_7_the_second_run_compiles_for_any_size_at_once(runs: Any) -> None:
    first, second = (run["eager"] for run in runs)
    profile = ["program:", "  L['x']: size [?, 2] stride [S(1), 1]", "  L['z']: size [?] stride [1]"]
    assert first == [3, ["5", "s77", "s77"], [0, 0], profile]
    assert second == [2, ["s77", "s77"], [0, 0], profile]


@pytest.mark.cpp
def test_SYM_4_the_second_run_finds_its_graphs_in_the_cache(runs: Any) -> None:
    first, second = (run["native"] for run in runs)
    assert first[:3] == [3, ["5", "s77", "s77"], [0, 3]]
    assert second[:3] == [2, ["s77", "s77"], [2, 0]]


@pytest.mark.cpp
def test_SYM_5_symbols_that_torch_names_otherwise_are_the_same_graph(runs: Any) -> None:
    first, second = (run["renamed"] for run in runs)
    assert first[:3] == [3, ["5", "s62", "s63"], [0, 3]]
    assert second[:3] == [2, ["s63", "s63"], [2, 0]]


def test_SYM_6_a_function_with_a_closure_is_known_in_the_next_process(runs: Any, folder: pathlib.Path) -> None:
    assert [run["closure"][0] for run in runs] == [2, 1]
    path = folder / "closure" / "cache" / "profiles" / "job.json"
    assert len(json.loads(path.read_text())["frames"]) == 1
