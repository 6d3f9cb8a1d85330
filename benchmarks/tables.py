"""Owns how the measurements print their tables: on the terminal and, on request, for a document.

What stands in them is for each measurement to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


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
    """Print a table, with the columns `left` aligned to the left, and once more `for_document`."""
    places = {place % len(columns) for place in left}
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number in places else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if for_document:
        console.print(markdown(columns, rows), soft_wrap=True, markup=False, highlight=False)
