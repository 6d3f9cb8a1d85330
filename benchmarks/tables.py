"""Owns the selection of measurements by name, and their printed tables: on the terminal and for a document.

The contents of the tables belong to each measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def wide_console() -> Console:
    """Returns the terminal; elsewhere lines that no table has to wrap."""
    return Console(width=None if Console().is_terminal else 160)


def chosen(parser: argparse.ArgumentParser, names: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """Returns the given names, or all `known` names if none is given; an unknown name ends the program."""
    every = list(known)
    unknown = [name for name in names if name not in every]
    if unknown:
        parser.error(f"no {what} {unknown[0]!r}; choose from {', '.join(every)}")
    return list(names) or every


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table for a document."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *rows))


def show(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Iterable[int] = (0,),
    for_document: bool = False,
) -> None:
    """Prints a table, with the columns `left` aligned to the left, and once more `for_document`."""
    places = {place % len(columns) for place in left}
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number in places else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if for_document:
        console.print(markdown(columns, rows), soft_wrap=True, markup=False, highlight=False)
