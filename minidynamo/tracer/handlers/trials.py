"""Owns the watch over code that is traced into a subgraph and must change nothing that exists around it.

What is then done is for the caller to say: custom Functions and checkpoints break the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.reachable import is_outside, reachable, target_of
from minidynamo.tracer.side_effects import Advanced, Effect, Written


@contextlib.contextmanager
def changing_nothing(tx: Tracer, refuse: Callable[[str], object]) -> Iterator[None]:
    """Inside the block, `refuse(what)` is called where something changes that is there now. It has to raise.

    Writes to tensors are in the subgraph, and not reported here.
    """
    effects = tx.side_effects
    held, _ = reachable([value for frame in tx.frames for value in frame.held()], effects)
    existing, around = frozenset(held), effects.on_effect

    def check(effect: Effect) -> None:
        around(effect)
        target = effect.iterator if isinstance(effect, Advanced) else target_of(effect)
        outside = target is None or is_outside(target) or target in existing
        if outside and not isinstance(effect, Written):
            refuse("it changes something outside")

    effects.on_effect = check
    try:
        yield
    finally:
        effects.on_effect = around
