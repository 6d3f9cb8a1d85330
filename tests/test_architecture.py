"""The rules of the house, one test each: allowed imports, size limits, and constructs that stay in one place.

The tests read the source as text and never import it, except to compare the public names with docs/api.md.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "minidynamo"
COMPAT = PACKAGE / "compat"
FILES = sorted(PACKAGE.rglob("*.py"))

# The folders that each folder, or public module at the root, may import: one row each, and every arrow points up.
MAY_IMPORT = {
    "errors": "",
    "compat": "",
    "config": "errors",
    "core": "errors compat config",
    "events": "core",
    "graph": "errors compat config core",
    "fake": "compat graph",
    "memory": "errors compat core graph",
    "bytecode": "errors core graph",
    "guards": "errors compat config core",
    "variables": "core graph guards",
    "tracer": "errors compat core graph fake bytecode guards variables",
    "graph_cache": "errors compat config core graph fake",
    "autograd": "errors compat config core graph fake memory graph_cache",
    "codegen": "errors compat config core graph fake memory graph_cache",
    "backends": "errors compat config core graph memory graph_cache autograd codegen",
    "frontend": "errors compat config core graph memory bytecode guards variables tracer codegen backends",
    "comptime": "frontend",
    "observe": "errors config core graph graph_cache codegen frontend",
    "testing": "errors core graph autograd backends frontend observe",
}
MAX_ROWS = 20
# Modules with Triton kernels, which are imported when the first kernel is launched.
MAX_DEFERRED_IMPORTS = 3
# The two entry files of a process; they may import anything.
ENTRIES = {"__init__", "__main__"}
MAX_LOOSE_FILES = {"autograd": 6, "tracer": 6}
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"utils", "util", "misc", "helpers", "helper", "common"}
VAGUE_CLASSES = re.compile(r"^(Base|Abstract)[A-Z]|(Manager|Helper|Util|Utils)$|^(Manager|Helper)")

# Files without a separate test file: their code runs only through the files whose tests cover it.
TESTED_ELSEWHERE = {
    "__init__.py": "lists names",
    "__main__.py": "calls cli.main",
    "variables/*.py": "plain records, made and read by tracer/handlers",
    "tracer/opcodes/*.py": "run by the programs of tests/end_to_end/language, on the running Python's bytecode",
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(path: Path, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Returns the minidynamo modules that these nodes import, with the line."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "minidynamo")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import with its full name, not with dots"
            if (node.module or "").split(".")[0] == "minidynamo":
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    yield (below if below in MODULES else str(node.module)), node.lineno


def complain(problems: list[str], advice: str) -> None:
    if problems:
        pytest.fail("\n".join([advice, *problems]), pytrace=False)


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_folder_has_a_row_and_every_arrow_points_up():
    folders = {room_of(module) for module in MODULES} - ENTRIES
    complain(sorted(folders ^ MAY_IMPORT.keys()), "Folders and rows of MAY_IMPORT differ:")
    assert len(MAY_IMPORT) <= MAX_ROWS
    order = list(MAY_IMPORT)
    problems = [
        f"{room} imports {target}, which stands below it"
        for room, targets in MAY_IMPORT.items()
        for target in targets.split()
        if target not in order[: order.index(room)]
    ]
    complain(problems, "A folder imports folders of earlier rows alone:")


def test_imports_follow_the_table():
    allowed = {room: {room, *targets.split()} for room, targets in MAY_IMPORT.items()}
    found = [
        (room_of(module), room_of(target), place(path, line), target)
        for module, path in MODULES.items()
        for target, line in imported_modules(path, nodes_of(path))
        if room_of(module) not in ENTRIES
    ]
    problems = [f"{where} ({room}) imports {target}" for room, to, where, target in found if to not in allowed[room]]
    complain(problems, "Pass the value or the function as an argument from above, or move it below both:")
    used = {(room, to) for room, to, _, _ in found}
    unused = [
        f"{room} -> {to}"
        for room, targets in allowed.items()
        for to in targets
        if {room, to} not in ({room},) and (room, to) not in used
    ]
    complain(unused, "MAY_IMPORT allows arrows that no file needs:")


def test_modules_at_the_root_are_public():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    loose = {path.stem for path in PACKAGE.glob("*.py")} - ENTRIES
    documented = set(re.findall(r"^\| `minidynamo\.(\w+)` \|", page, flags=re.MULTILINE))
    assert loose == documented, "docs/api.md lists the modules that users import by path, and no others"
    for folder, most in MAX_LOOSE_FILES.items():
        files = [path.name for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__"]
        assert len(files) <= most, f"{folder} has {len(files)} files outside its folders: {files}"


def defined_names(module: str) -> set[str]:
    """Returns the functions and classes at the top of a module; an empty set if the module does not exist."""
    body = tree_of(MODULES[module]).body if module in MODULES else []
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if path.stem == "__init__" and "." in name])
def test_every_folder_says_what_it_owns_and_where_to_enter(module):
    lines = (ast.get_docstring(tree_of(MODULES[module])) or "").splitlines()
    text = " ".join(lines)
    owns, does_not, enter = (
        re.search(r" Owns ", text),
        re.search(r" Does not own ", text),
        re.search(r" Enter at ", text),
    )
    assert owns and does_not and enter, f"{module}: write Owns ..., Does not own ..., Enter at `file.function`"
    assert len(lines) <= 8, f"{module}: five lines or so; details belong into the files"
    for name in re.findall(r"`([\w.]+)`", text[enter.start() :]):
        file, _, function = name.rpartition(".")
        above = module.rpartition(".")[0]
        assert any(function in defined_names(f"{folder}.{file}") for folder in (module, above)), f"{module}: no {name}"


def test_no_import_circles():
    edges = {
        module: {t for t, _ in imported_modules(path, nodes_of(path))} - {module} for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            pytest.fail(
                f"These files import each other, split one: {' -> '.join([*trail[trail.index(module) :], module])}"
            )
        if module not in done:
            for target in sorted(edges.get(module, ())):
                visit(target, [*trail, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in nodes_of(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_no_imports_of_ours_inside_functions():
    problems = [
        f"{place(path, line)} {function.name} imports {target}"
        for path in FILES
        for function in functions(path)
        for target, line in imported_modules(path, ast.walk(function))
    ]
    complain(problems, "An import inside a function hides a circle; import at the top or pass the value in:")


def test_deferred_imports_are_counted():
    found = [
        place(path, node.lineno)
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and dotted(node.func) == "importlib.import_module"
        if node.args and isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("minidynamo")
    ]
    complain(found[MAX_DEFERRED_IMPORTS:], f"More than {MAX_DEFERRED_IMPORTS} modules of ours are imported by name:")


def test_no_type_checking_imports():
    problems = [str(path.relative_to(ROOT)) for path in FILES if "TYPE_CHECKING" in path.read_text(encoding="utf-8")]
    complain(problems, "TYPE_CHECKING hides a circle; import the type for real or use a Protocol:")


def table_lines(tree: ast.Module) -> int:
    """Returns the lines of module-level literals, which do not count: a table has a line per rule."""
    values = [getattr(node, "value", None) for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return sum(v.end_lineno - v.lineno for v in values if isinstance(v, (ast.Dict, ast.List, ast.Set, ast.Tuple)))


def test_files_stay_small():
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) - table_lines(tree_of(path)) for path in FILES}
    problems = [f"{path.relative_to(ROOT)}: {size} lines" for path, size in sizes.items() if size > MAX_FILE_LINES]
    complain(problems, f"Split by subject; a file has at most {MAX_FILE_LINES} lines, tables not counted:")


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def test_functions_stay_small():
    problems = [
        f"{place(path, function.lineno)} {function.name}: {code_lines(function)} lines"
        for path in FILES
        for function in functions(path)
        if code_lines(function) > MAX_FUNCTION_LINES
    ]
    complain(problems, f"Name the steps; a function has at most {MAX_FUNCTION_LINES} lines without its docstring:")


def test_every_file_says_what_it_owns():
    problems = []
    for path in FILES:
        docstring = ast.get_docstring(tree_of(path)) or ""
        wanted = 1 if path.name.startswith("__") else 2
        if len([part for part in docstring.split("\n\n") if part.strip()]) < wanted:
            problems.append(str(path.relative_to(ROOT)))
    complain(problems, "A module docstring says in its first line what the file owns, in a second paragraph what not:")


def dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_private_torch(name: str) -> bool:
    head, *rest = name.split(".")
    return head == "torch" and any(part.startswith("_") and not part.endswith("__") for part in rest)


def private_torch_uses(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes_of(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        yield from ((name, node.lineno) for name in names if is_private_torch(name))


def test_private_torch_names_stay_in_compat():
    problems = sorted(
        {
            f"{place(path, line)} {name}"
            for path in FILES
            if COMPAT not in path.parents
            for name, line in private_torch_uses(path)
        }
    )
    complain(problems, "Re-export the name in minidynamo/compat/ with a word on why, and use it from there:")


def test_python_version_is_asked_in_compat_only():
    problems = [
        place(path, node.lineno)
        for path in FILES
        if COMPAT not in path.parents
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and dotted(node) in ("sys.version_info", "sys.hexversion")
    ]
    complain(problems, "Use a flag of minidynamo/compat/python.py (PY312, PY313, ...):")


def test_environment_is_read_in_config_only():
    problems = [
        place(path, node.lineno)
        for path in FILES
        if path.name != "config.py"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.putenv")
    ]
    complain(problems, "Add a field to minidynamo/config.py; each field is also MINIDYNAMO_<FIELD>:")


def test_no_global_statement():
    problems = [place(path, node.lineno) for path in FILES for node in nodes_of(path) if isinstance(node, ast.Global)]
    complain(problems, "State belongs into an object that is passed, or a module-level container:")


def test_assertions_only_look():
    """`python -O` removes asserts: the calls inside must guard nothing, and change nothing."""
    looks = re.compile(r"isinstance|issubclass|callable|len|(.*\.)?is_\w+")
    problems = [
        f"{place(path, node.lineno)}: {ast.unparse(call.func)}()"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Assert)
        for call in ast.walk(node.test)
        if isinstance(call, ast.Call) and not looks.fullmatch(ast.unparse(call.func))
    ]
    complain(problems, "Do it in a statement of its own.")


def test_no_vague_names():
    problems = [str(path.relative_to(ROOT)) for path in FILES if path.stem in VAGUE_NAMES]
    problems += [str(path.parent.relative_to(ROOT)) for path in FILES if path.parent.name in VAGUE_NAMES]
    problems += [
        f"{place(path, node.lineno)} class {node.name}"
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and VAGUE_CLASSES.search(node.name)
    ]
    complain(problems, "Name it after what it owns, in the field's terms:")


def test_nothing_is_left_to_do():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    problems = [
        f"{place(path, number)} {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    complain(problems, "Do it, raise a clear error instead, or open an issue:")


def test_every_source_file_has_its_test_file():
    problems = []
    for path in FILES:
        below = path.relative_to(PACKAGE)
        test = ROOT / "tests" / below.parent / f"test_{below.name}"
        if not any(path.match(pattern) for pattern in TESTED_ELSEWHERE) and not test.exists():
            problems.append(f"{path.relative_to(ROOT)} -> {test.relative_to(ROOT)}")
    complain(problems, "Write the missing test file:")


def test_public_names_are_documented():
    tree = tree_of(PACKAGE / "__init__.py")
    exported = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__"
    ]
    if not exported:
        pytest.fail("minidynamo/__init__.py lists its public names in __all__, one per line", pytrace=False)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^#+ .*?`minidynamo\.(\w+)", page, flags=re.MULTILINE))
    missing = sorted(set(exported[0]) - documented)
    complain(missing, "Write an entry with the heading ### `minidynamo.NAME(...)` in docs/api.md for:")
    complain(sorted(documented - set(exported[0])), "docs/api.md documents what minidynamo does not export:")


def test_the_product_speaks_of_itself_alone():
    # Assembled here, so that this file does not contain the word.
    words = re.compile(
        "|".join((r"\bwork" + "place", "/wo" + r"rk/", r"\bsess" + r"ions?\b(?!\")", r"\bsub" + "agent")), re.I
    )
    roots = [PACKAGE, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks", ROOT / "scripts", ROOT / ".ci"]
    texts = [p for root in roots for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    texts += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    problems = [
        f"{place(path, number)} {line.strip()}"
        for path in texts
        if path.exists()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    complain(problems, "Say it about the product:")
