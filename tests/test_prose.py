"""The project writes plain English: CONTRIBUTING.md has the rules, docs/glossary.md the terms."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.prose import Prose, measure

ROOT = Path(__file__).parent.parent
FILES = {
    "package": sorted((ROOT / "minidynamo").rglob("*.py")),
    "docs": [
        *sorted((ROOT / "docs").glob("*.md")),
        *(ROOT / f"{page}.md" for page in ("README", "CONTRIBUTING", "CHANGELOG")),
    ],
    "tests": sorted(path for name in ("tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")),
}
MOST_PRONOUNS = 0.06
MOST_WORDS_OUT = 5


@functools.cache
def measured(name: str) -> Prose:
    return measure(FILES[name], ROOT)


@pytest.fixture(params=FILES)
def prose(request: pytest.FixtureRequest) -> Prose:
    return measured(request.param)


def test_sentences_name_things(prose):
    share = prose.pronouns / prose.words
    assert share <= MOST_PRONOUNS, f"{share:.1%} of the words are pronouns; name the thing instead"
    assert not prose.hard, "Write these sentences again:\n" + "\n".join(prose.hard)


def test_docstrings_open_with_a_verb_or_a_noun(prose):
    assert not prose.openings, "\n".join(prose.openings)


def test_words_are_plain():
    found = [where for name in FILES for where in measured(name).out]
    assert len(found) <= MOST_WORDS_OUT, "\n".join(found)


def test_fixes_in_messages_are_sentences():
    found = []
    for path in FILES["package"]:
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            keywords = call.keywords if isinstance(call, ast.Call) else []
            fixes = [each.value for each in keywords if each.arg == "fix" and isinstance(each.value, ast.Constant)]
            found += [f"{path}:{fix.lineno} {fix.value}" for fix in fixes if fix.value and fix.value[0].islower()]
    assert not found, "\n".join(found)


def test_the_measure_finds_what_it_looks_for(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# What\n\nThat which hangs on it is what one gives those that it is told, which they let go of.\n", "utf-8"
    )
    module = tmp_path / "module.py"
    module.write_text('"""What it is."""\n\nx = 1  # a comment that stands in front of nothing\n', "utf-8")
    prose = measure([page, module], tmp_path)
    assert [len(found) for found in (prose.hard, prose.openings, prose.out)] == [1, 1, 4]
    assert prose.words == 30 and prose.pronouns == 13
