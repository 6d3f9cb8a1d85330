"""Owns the table of known facts of each model: graphs, breaks, recompiles, and peaks above eager's.

`pytest tests/models --slow --update-golden` rewrites the rows of the models that it runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from tests.models.training import Run

TABLE = Path(__file__).with_name("table.json")

#: The table holds for this torch version. Different versions capture different graphs and need different amounts of
#: memory.
TORCH = "2.13.0"

#: A ratio to eager's peak above which a peak is a miss; below `BETTER` it is not. Between the two, either is accepted.
WORSE, BETTER = 1.01, 1.0


def check(name: str, runs: Mapping[str, Run], *, update: bool) -> None:
    """Compares the observations of a model with its row; `update` writes the row first."""
    if torch.__version__.partition("+")[0] != TORCH:
        return
    if update:
        _write(name, row_of(runs))
    known = json.loads(TABLE.read_text(encoding="utf-8"))
    assert name in known, f"{name} has no row in {TABLE.name}; run pytest with --update-golden to write it"
    assert not (found := complaints(known[name], runs)), "\n".join(found)


def row_of(runs: Mapping[str, Run]) -> dict[str, Any]:
    """The row of a model: a single number where all backends agree, and the peaks that are misses."""
    row: dict[str, Any] = {}
    for key in ("graphs", "breaks", "recompiles", "fallbacks"):
        numbers = {backend: run.counts.numbers()[key] for backend, run in runs.items()}
        row[key] = next(iter(numbers.values())) if len(set(numbers.values())) == 1 else numbers
    row["peaks"] = {backend: round(run.peak, 3) for backend, run in runs.items() if run.peak > WORSE}
    return row


def complaints(known: Mapping[str, Any], runs: Mapping[str, Run]) -> list[str]:
    """Returns the differences from a row."""
    found = []
    for backend, run in runs.items():
        for key, number in run.counts.numbers().items():
            expected = known[key][backend] if isinstance(known[key], dict) else known[key]
            # Pieces that are left to Python (MD308) are not captured again for other sizes.
            if number > expected or (number < expected and backend != "native"):
                found.append("\n".join([f"{backend}: {number} {key}, {expected} known", *run.counts.details]))
        listed = known["peaks"].get(backend)
        if run.peak > WORSE and listed is None:
            found.append(f"{backend}: the peak is {run.peak:.3f} of eager's")
        if run.peak <= BETTER and listed is not None:
            found.append(
                f"{backend}: the peak is {run.peak:.3f} of eager's, and listed as {listed}: take it off the list"
            )
    return found


def _write(name: str, row: dict[str, Any]) -> None:
    with FileLock(Path(tempfile.gettempdir(), "minidynamo_models_table.lock")):
        rows = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
        rows[name] = row
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
        TABLE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
