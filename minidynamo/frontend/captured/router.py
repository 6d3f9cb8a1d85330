"""Owns the open blocks of each thread, and the choice of the backward that is captured.

torch has one compiler of backwards for the process, and runs one captured backward at a time. A backward is captured if
its thread has an open block and no captured backward runs; other backwards run eagerly. The compiler is set only while
torch captures, so backwards of other threads wait for that long. A backward runs no code of the user in that time, so
no thread waits for another one that waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from minidynamo import compat
from minidynamo.core.events import notice
from minidynamo.errors import Diagnostic, Unsupported


class Block(Protocol):
    """A block in which backwards are captured: keywords of `compile`."""

    backend: Any
    fullgraph: bool
    dynamic: bool | None


class _OtherThread(Exception):
    """torch captured a backward that started, without a block, while the compiler was set."""


def _busy() -> Diagnostic:
    return Diagnostic(
        "MD525",
        "a backward runs eagerly: a captured backward runs in another thread",
        why="torch runs one captured backward at a time.",
        fix="Run the backwards of one thread only in a block of `captured_backward`, or share a lock.",
    )


def _refused(error: Exception) -> Diagnostic:
    return Diagnostic(
        "MD525",
        f"a backward runs eagerly: torch cannot capture it: {str(error).splitlines()[0]}",
        why="A node of the autograd graph is written in C++, and does not support capture.",
        fix="Run this backward outside of `captured_backward`.",
    )


class BackwardRouter:
    """Runs the backwards of the process while a block is open. `new_compiler` returns a compiler for torch."""

    def __init__(self, new_compiler: Callable[[], Any]) -> None:
        self.new_compiler = new_compiler
        self.changed = threading.Condition()
        #: the thread whose backward is captured or runs captured; None if there is none
        self.owner: int | None = None
        #: whether torch has the compiler
        self.is_capturing = False
        #: whether the compiler was used, or the captured function has started
        self.has_begun = False
        #: the block of the captured backward
        self.block: Block | None = None
        #: functions to call at the end of the captured backward
        self.callbacks: list[Callable[[], None]] = []
        #: the number of backwards that run inside of the captured one
        self.depth = 0
        #: the block for threads that have none
        self.default: Block | None = None
        self.blocks_of_thread = threading.local()
        self.open_blocks = 0
        #: the number of captures of torch's compiled autograd at the last check; they replace ours
        self.captures_of_torch = 0

    # Blocks

    def open(self, block: Block) -> None:
        """Makes `block` the innermost one of the thread."""
        self._blocks().append(block)
        self._count(1)

    def close(self, block: Block) -> None:
        """Closes a block of the thread."""
        self._blocks().remove(block)
        self._count(-1)

    def set_default(self, block: Block | None) -> None:
        """Makes `block` the one of all threads without a block."""
        self._count((block is not None) - (self.default is not None))
        self.default = block

    def _blocks(self) -> list[Block]:
        if not hasattr(self.blocks_of_thread, "blocks"):
            self.blocks_of_thread.blocks = []
        blocks: list[Block] = self.blocks_of_thread.blocks
        return blocks

    def _count(self, change: int) -> None:
        with self.changed:
            self.open_blocks += change
            compat.route_backwards(self if self.open_blocks else None)

    # Backwards

    def run(self, start: Callable[[], Any]) -> Any:
        """Runs a backward, captured or eagerly."""
        block = self._blocks()[-1] if self._blocks() else self.default
        if self.owner == threading.get_ident():
            return self._run_inside(start)
        if block is None or compat.is_uncaptured():
            return self._run_eagerly(start)
        if not self._begin(block):
            if block.fullgraph:
                raise Unsupported(_busy())
            notice(_busy())
            return self._run_eagerly(start)
        try:
            with (
                compat.backward_compiler(self._compiler, block.dynamic is True),
                torch.autograd.set_multithreading_enabled(False),
            ):
                result = start()
            for callback in self.callbacks:  # may queue more
                callback()
            return result
        except Exception as error:
            if self.has_begun or block.fullgraph:
                raise
            refusal = error
        finally:
            self._end()
        result = self._run_eagerly(start)
        notice(_refused(refusal))
        return result

    def _begin(self, block: Block) -> bool:
        with self.changed:
            if self.owner is not None:
                return False
            self.owner, self.block, self.is_capturing, self.has_begun = threading.get_ident(), block, True, False
            captures = compat.captures_of_torch_compile()
            if captures != self.captures_of_torch:
                compat.forget_captured_backwards()
                self.captures_of_torch = captures
            return True

    def _end(self) -> None:
        with self.changed:
            self.owner, self.block, self.is_capturing = None, None, False
            self.callbacks = []
            self.changed.notify_all()

    def _compiler(self) -> Any:
        if self.owner != threading.get_ident():
            raise _OtherThread
        self.has_begun = True
        return self.new_compiler()

    def end_capture(self) -> Block | None:
        """Ends the capture: the captured function starts. Returns the block of `captured_backward`; None if the
        backward was to run eagerly."""
        if self.owner != threading.get_ident():
            return None
        self.has_begun = True
        compat.end_capture()
        with self.changed:
            self.is_capturing = False
            self.changed.notify_all()
        return self.block

    def queue_callback(self, callback: Callable[[], None]) -> bool:
        """Queues a function for the end of the captured backward; returns False in any other backward."""
        is_captured = self.owner == threading.get_ident() and not self.depth
        if is_captured:
            self.callbacks.append(callback)
        return is_captured

    def _run_inside(self, start: Callable[[], Any]) -> Any:
        self.depth += 1
        try:
            return start()
        finally:
            self.depth -= 1

    def _run_eagerly(self, start: Callable[[], Any]) -> Any:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: not self.is_capturing)
            try:
                return start()
            except _OtherThread:
                continue  # a capture has begun after the wait
            except NotImplementedError as error:
                if not compat.is_second_capture(error):
                    raise
