"""All contents of the documentation are run: examples, error codes, links."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import re
import warnings
from pathlib import Path

import pytest
import torch

import minidynamo
from minidynamo import errors
from minidynamo.core.events import forget_notices, on_event
from minidynamo.errors import MinidynamoError
from minidynamo.observe.cli import error_entries
from minidynamo.tracer import trace_rules
from minidynamo.tracer.calls import call
from minidynamo.tracer.frames import interpreter

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
ENTRIES = error_entries()

# Names that the examples of docs/errors.md assume.
PRELUDE = """
import collections, copy, dataclasses, enum, functools, itertools, math
from dataclasses import dataclass
import torch
import minidynamo
"""

# Codes that no program can show on purpose; the entry describes their origin.
NOT_SHOWN = re.compile(r"^No example: .+", flags=re.MULTILINE)


def run(code: str, namespace: dict, page: Path, before: int = 0) -> None:
    """Executes an example; tracebacks point into the page, `before` lines down."""
    exec(compile("\n" * before + code, str(page), "exec"), namespace)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "errors.md"], ids=lambda page: page.name)
def test_every_example_runs(page, tmp_path, monkeypatch, md_reset):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "example"}
    with minidynamo.config.patch():  # a page may change settings permanently
        for example in EXAMPLE.finditer(text):
            run(example[1], namespace, page, line_of(text, example.start()))


@pytest.mark.parametrize("code", ENTRIES)
@pytest.mark.provokes_failures
def test_every_error_example_gives_its_code(code, tmp_path, monkeypatch, md_reset):
    examples = EXAMPLE.findall(ENTRIES[code])
    if not examples:
        assert NOT_SHOWN.search(ENTRIES[code]), f"{code}: give a ```python example, or a line 'No example: why'"
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreter, "STEP_LIMIT", 20_000)  # otherwise an endless loop takes many seconds
    codes = codes_of(examples[0])
    assert code in codes, f"the example of {code} gives {sorted(codes) or 'no code'}"
    for fixed in examples[1:]:
        assert code not in codes_of(fixed, may_raise=False), f"the fix of {code} still gives it"


def codes_of(example: str, *, may_raise: bool = True) -> set[str]:
    """Returns the codes that an example raises, warns of, reports or prints.

    An example that only defines `f` is compiled and called, as the head of docs/errors.md says.
    """
    seen: set[str] = set()

    def note(event):
        if "diagnostic" in event.data:
            seen.add(event.data["diagnostic"].code)

    forget_notices()
    unsubscribe = on_event(note)
    namespace = {"__name__": "example"}
    run(PRELUDE, namespace, ROOT / "docs" / "errors.md")
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("ignore")
            run(example, namespace, ROOT / "docs" / "errors.md")
            if "f" in namespace and "minidynamo." not in example:
                values = {"x": torch.randn(4), "y": torch.randn(4), "xs": [torch.randn(4) for _ in range(4)], "n": 3}
                arguments = [values[name] for name in inspect.signature(namespace["f"]).parameters]
                minidynamo.compile(namespace["f"], backend="eager")(*arguments)
    except MinidynamoError as error:
        seen.add(error.code)
    except Exception:
        # Python's own errors after the cut are not the subject of an entry.
        if not may_raise:
            raise
    finally:
        unsubscribe()
    return seen | set(re.findall(r"\bMD\d{3}\b", printed.getvalue()))


def test_every_code_has_its_entry_and_every_entry_its_code():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "minidynamo").rglob("*.py"))
    used = set(re.findall(r"\"(MD\d{3})\"", re.sub(r"``.*?``", "", sources)))
    missing, unused = sorted(used - ENTRIES.keys()), sorted(ENTRIES.keys() - used)
    assert not missing, f"write entries in docs/errors.md for {', '.join(missing)}"
    assert not unused, f"docs/errors.md explains codes that nothing gives: {', '.join(unused)}"


def test_entries_are_in_order():
    assert list(ENTRIES) == sorted(ENTRIES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken, f"{page.name} links to nothing: {', '.join(broken)}"


def test_the_changelog_starts_with_this_version():
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert first is not None and first[1] == minidynamo.__version__


def test_architecture_names_every_folder():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.relative_to(ROOT / "minidynamo") for path in (ROOT / "minidynamo").rglob("*.py")}
    missing = sorted(str(folder) for folder in folders if folder.name and f"`{folder}/`" not in text)
    assert not missing, f"docs/architecture.md says nothing of {', '.join(missing)}"


TRACER_PAGE = (ROOT / "docs" / "tracer.md").read_text(encoding="utf-8")
RULES = re.findall(r"^\d+\. `(\w+)`: ((?:.|\n    )*)", TRACER_PAGE, flags=re.MULTILINE)


def test_the_tracer_page_has_the_rules_in_their_order():
    source = inspect.getsource(trace_rules.rule_for)
    source = source.replace("_function_rule(value)", inspect.getsource(trace_rules._function_rule))
    assert [action for action, _ in RULES] == re.findall(r"\bAction\.(\w+)", source)


@pytest.mark.parametrize(("action", "text"), RULES, ids=lambda value: value if value.isupper() else "")
def test_the_examples_of_the_rules_follow_them(action, text):
    modules = {name: importlib.import_module(name) for name in ("colorsys", "logging", "math", "operator", "zlib")}
    for name in re.findall(r"\bas (?:for )?`([^`]+)`", text):
        assert trace_rules.rule_for(eval(name, {"torch": torch, **modules})).action.name == action, name


def test_the_tracer_page_names_what_can_be_called():
    listed = re.findall(
        r"`(\w+Variable|BoundBuiltin)`", "\n".join(re.findall(r"^- (`.*?): ", TRACER_PAGE, re.MULTILINE))
    )
    assert sorted(listed) == sorted(tracker.__name__ for tracker in call._CALLS)


def test_the_tracer_page_lists_every_break():
    row = re.compile(r"^\| \[(MD\d+)\]\(errors\.md#([\w-]+)\) \| (.*?) \| .+ \|$", flags=re.MULTILINE)
    listed = {code: (anchor, title) for code, anchor, title in row.findall(TRACER_PAGE)}
    titles = re.findall(r"^## (MD2\d\d) (.+)$", (ROOT / "docs" / "errors.md").read_text("utf-8"), flags=re.MULTILINE)
    for code, title in titles:
        assert code in listed, f"write a row for {code} in docs/tracer.md"
        anchor = re.sub(r"[^\w -]", "", f"{code} {title}").lower().replace(" ", "-")
        assert listed.pop(code) == (anchor, title)
    assert not listed, f"docs/tracer.md explains codes that docs/errors.md does not: {', '.join(listed)}"


def test_settings_are_documented():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [line.split(" = ")[0] for line in minidynamo.config.current.describe().splitlines()]
    missing = [name for name in missing if f"`{name}`" not in text]
    assert not missing, f"docs/api.md says nothing of the settings {', '.join(missing)}"


def test_the_figures_of_the_readme_are_those_of_the_performance_page():
    measured = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    section = (ROOT / "README.md").read_text("utf-8").split("## How fast")[1].split("\n## ")[0]
    table = re.findall(r"^\| .+ \|$", section, re.MULTILINE)[2:]
    assert len(table) > 5
    for row in table:
        figures = re.findall(r"[\d.]+(?= us| ms| s| MiB)|\b0\.\d\d\b", row.partition("|")[2].partition("|")[2])
        assert len(figures) >= 3 and any(
            all(f" {figure} |" in line for figure in figures) for line in measured.splitlines()
        ), row


def test_the_exceptions_that_users_meet_are_documented():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    kinds = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MinidynamoError)
    }
    inside = {"GraphBreak", "SkipFrame", "GraphRefused"}  # these do not reach users
    assert not [name for name in kinds - inside if f"`{name}`" not in page]


def test_the_contract_lists_the_checks_that_have_tests():
    contract = (ROOT / "docs" / "contract.md").read_text("utf-8")
    listed = re.findall(r"^\| ([A-Z]+\d?-\d+) \|", contract, flags=re.MULTILINE)
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"^ *def (?:test_)?((?:[A-Z]+\d?_\d+_)+)", tests, flags=re.MULTILINE)
    tested = {check.replace("_", "-") for name in names for check in re.findall(r"[A-Z]+\d?_\d+", name)}
    assert len(listed) == len(set(listed)) and set(listed) == tested
