"""Measures the prose of Python and Markdown files: pronouns, hard sentences, openings of docstrings, discouraged words.

Excludes tables, headings and code of Markdown pages; `code` in backticks counts as one word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PRONOUNS = frozenset(
    [
        "what",
        "that",
        "those",
        "which",
        "whose",
        "who",
        "whom",
        "it",
        "them",
        "one",
        "other",
        "ones",
        "others",
        "there",
        "so",
        "such",
        "these",
        "this",
        "they",
        "its",
    ]
)
OPENINGS = frozenset(["what", "whatever", "those", "one", "of", "that"])
# Words with a plainer equivalent: see docs/glossary.md and CONTRIBUTING.md.
OUT = re.compile(
    r"\b(hangs? on|hung on|behind|in front of|beside|stands? for|nobody|somebody|as written|told|lies? in|comes? to|"
    r"gives? up|goes? through|for want of|on the way|in turn|taken apart|handed on|lets? go)\b",
    re.IGNORECASE,
)
# Python's tokenizer, written in Python, would take most of the time.
COMMENT = re.compile(r"""(?:[^#"']|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*(#.*)""")
LONG = 14  # words of a sentence; from this length on, a quarter of pronouns makes a sentence hard


@dataclass
class Prose:
    """Counts over some files."""

    #: All words.
    words: int = 0
    #: Words in PRONOUNS.
    pronouns: int = 0
    #: Sentences of at least LONG words, at least a quarter of them pronouns; each with its file and line.
    hard: list[str] = field(default_factory=list)
    #: Docstrings that open with a word of OPENINGS, each with its file and line.
    openings: list[str] = field(default_factory=list)
    #: Words and phrases of OUT, each with its file and line.
    out: list[str] = field(default_factory=list)

    def add(self, where: str, text: str) -> None:
        """Counts a paragraph, comment or docstring."""
        self.out += [f"{where} {found}" for found in OUT.findall(text)]
        for sentence in re.split(r"(?<=[.:;!?])\s+|\n\s*\n", re.sub(r"`[^`]*`", "X", text)):
            words = re.findall(r"[A-Za-z']+", sentence)
            pronouns = sum(word.lower() in PRONOUNS for word in words)
            self.words += len(words)
            self.pronouns += pronouns
            if len(words) >= LONG and 4 * pronouns >= len(words):
                self.hard.append(f"{where} {' '.join(sentence.split())}")


def measure(files: Iterable[Path], root: Path) -> Prose:
    """Measures files below `root`."""
    prose = Prose()
    for path in files:
        paragraphs = _page(path) if path.suffix == ".md" else _module(path)
        for line, is_docstring, text in paragraphs:
            where = f"{path.relative_to(root)}:{line}"
            prose.add(where, text)
            first = re.match(r"[A-Za-z]+", text)
            if is_docstring and first and first[0].lower() in OPENINGS:
                prose.openings.append(f"{where} {text.splitlines()[0]}")
    return prose


def _module(path: Path) -> Iterator[tuple[int, bool, str]]:
    source = path.read_text(encoding="utf-8")
    inside: set[int] = set()  # the lines of strings of several lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            inside.update(range(node.lineno, node.end_lineno or 0))
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if text := ast.get_docstring(node) if is_documented else None:
            yield getattr(node, "lineno", 1), True, text
    for number, line in enumerate(source.splitlines(), 1):
        comment = COMMENT.match(line) if "#" in line and number not in inside else None
        if comment and len(comment[1]) > 20:
            yield number, False, comment[1].lstrip("#: ")


def _page(path: Path) -> Iterator[tuple[int, bool, str]]:
    paragraph: list[str] = []
    start, is_code = 1, False
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and line.strip() and not line.startswith(("#", "|", "    ")):
            start = start if paragraph else number
            paragraph.append(line.strip())
            continue
        if paragraph:
            yield start, False, " ".join(paragraph)
            paragraph = []
