"""Missing modules, and modules that appear later."""

import importlib
import importlib.metadata
import importlib.util
import sys

import pytest
import torch

import minidynamo


def statement(x):
    try:
        import module_of_no_one  # noqa: PLC0415 (under test)
    except ImportError:
        return x - 1
    return x + module_of_no_one.number


def a_part(x):
    try:
        from module_of_no_one.part import number  # noqa: PLC0415 (under test)
    except ModuleNotFoundError:
        return x - 1
    return x + number


def found(x):
    return x + 3 if importlib.util.find_spec("module_of_no_one") else x - 1


def imported(x):
    try:
        return x + importlib.import_module("module_of_no_one").number
    except ImportError:
        return x - 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("module_of_no_one")]:
        del sys.modules[name]


@pytest.mark.parametrize("program", [statement, a_part, found, imported])
def test_a_module_that_is_missing_until_it_comes(program, folder):
    compiled = minidynamo.compile(program, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(x), x - 1)
    assert compiled.stats.compiles == 1 and "no graph breaks" in str(compiled.breaks())

    (folder / "module_of_no_one").mkdir()
    (folder / "module_of_no_one" / "__init__.py").write_text("number = 3")
    (folder / "module_of_no_one" / "part.py").write_text("number = 3")
    importlib.invalidate_caches()
    for _ in range(2):
        assert torch.equal(compiled(x), x + 3)


def test_what_nobody_catches_is_raised_by_python():
    def program(x):
        import module_of_no_one  # noqa: PLC0415 (under test)

        return x + module_of_no_one.number

    for function in (program, minidynamo.compile(program, backend="eager")):
        with pytest.raises(ModuleNotFoundError, match="No module named 'module_of_no_one'") as raised:
            function(torch.ones(2))
        assert raised.value.name == "module_of_no_one"


def test_a_module_that_must_not_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "module_of_no_one", None)
    x = torch.ones(2)
    for program in (statement, imported):
        assert torch.equal(minidynamo.compile(program, backend="eager")(x), x - 1)


def test_modules_that_there_are():
    def program(x):
        return x * len(importlib.import_module("os.path").join("a", "b")), importlib.util.find_spec("torch.nn").name

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2))[1] == "torch.nn"


def test_versions_of_what_is_installed(folder):
    def program(x, name):
        try:
            return x + int(importlib.metadata.version(name).split(".")[0])
        except importlib.metadata.PackageNotFoundError:
            return x - 1

    def install(version):
        folder.joinpath("no_one-0.dist-info").mkdir(exist_ok=True)
        folder.joinpath("no_one-0.dist-info", "METADATA").write_text(f"Name: no-one\nVersion: {version}\n")

    compiled = minidynamo.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x, "no-one"), x - 1)
    for version in (3, 3, 5):
        install(version)
        importlib.invalidate_caches()
        assert torch.equal(compiled(x, "no-one"), x + version)
    assert compiled.stats.compiles == 3
    assert torch.equal(compiled(x, "numpy"), program(x, "numpy"))
