"""Owns drawing random numbers as torch does on a CPU, from its generator, but many at a time.

Dropout spends most of its time there. What is drawn, and what is left of the generator, is torch's to the last bit, and
the generator's own lock is held meanwhile, as torch holds it: threads that draw at once never get the same numbers.
Where that cannot be had, torch draws.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from minidynamo import compat
from minidynamo.codegen.runtime import library
from minidynamo.errors import BackendError

aten = torch.ops.aten

FEWEST = 256
"""Elements from which on it is worth to call machine code of our own."""

# Functions of torch that read and write the engine in a generator: those of any generator of a CPU.
_ENGINE = ("_ZN2at16CPUGeneratorImpl6engineEv", "_ZN2at16CPUGeneratorImpl10set_engineENS_14mt19937_engineE")

# Where the lock lies in a generator: behind the table of its methods and the count of references to it.
_LOCK_OFFSET = 16
_LOCK_WORDS = 10
# What the first word of a lock says while a thread waits for it.
_AWAITED = 2
_LONGEST_WAIT = 5.0

Draw = Callable[[torch.Generator, torch.Tensor, float], None]


def bernoulli(like: torch.Tensor, p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """`aten.bernoulli.p`: a tensor in row-major order, with ones by probability `p`."""
    draw = _draw_for(like, p)
    if draw is None:
        drawn: torch.Tensor = aten.bernoulli.p(like, p, generator=generator)
        return drawn
    made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    draw(torch.default_generator if generator is None else generator, made, p)
    return made


def fill_bernoulli(out: torch.Tensor, p: float) -> torch.Tensor:
    """`aten.bernoulli_.float`: `out`, filled with ones by probability `p`."""
    draw = _draw_for(out, p) if out.is_contiguous() else None
    if draw is None:
        filled: torch.Tensor = aten.bernoulli_.float(out, p)
        return filled
    compat.increment_version((out,))
    draw(torch.default_generator, out, p)
    return out


def _draw_for(like: torch.Tensor, p: float) -> Draw | None:
    """What draws as many numbers as `like` has elements, if that is worth it and can be had."""
    plain = like.dtype in (torch.float32, torch.bool) and like.device.type == "cpu" and 0 <= p <= 1
    return _drawn_by_machine_code() if plain and like.numel() >= FEWEST else None


@functools.cache
def _drawn_by_machine_code() -> Draw | None:
    """What fills a tensor, if there is a compiler and if what it draws is found to be what torch draws."""
    own = torch.Generator("cpu").manual_seed(7)
    try:
        entry = library.load(Path(__file__).with_name("bernoulli.cpp").read_text(encoding="utf-8"), ["bernoulli"])
        torch_library = ctypes.CDLL(compat.NATIVE_LIBRARY)
        engine = [ctypes.cast(getattr(torch_library, name), ctypes.c_void_p).value for name in _ENGINE]
        if not _is_locked_by_torch(own):
            return None
    except (BackendError, AttributeError, RuntimeError):  # no compiler, another torch, no more threads
        return None
    draw = functools.partial(_draw, entry["bernoulli"], engine)
    return draw if _is_same(draw, own) else None


def _draw(
    entry: library.Entry, engine: list[int | None], generator: torch.Generator, out: torch.Tensor, p: float
) -> None:
    address = compat.address_of_generator(generator)
    entry(out.data_ptr(), out.numel(), math.ceil(p * 2**53), address, address + _LOCK_OFFSET, *engine, out.itemsize)


def _is_locked_by_torch(generator: torch.Generator) -> bool:
    """Whether a thread that draws by torch waits for whoever holds what is taken for the generator's lock.

    Raises AttributeError where the system has other locks, RuntimeError where no thread can be started.
    """
    address = compat.address_of_generator(generator) + _LOCK_OFFSET
    words = (ctypes.c_int * _LOCK_WORDS).from_address(address)
    system, lock = ctypes.CDLL(None), ctypes.c_void_p(address)
    thread = threading.Thread(target=torch.empty(1, device="cpu").uniform_, kwargs={"generator": generator})
    if any(words) or system.pthread_mutex_trylock(lock):
        return False
    try:
        thread.start()
        deadline = time.monotonic() + _LONGEST_WAIT
        while words[0] != _AWAITED and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0)
        found = words[0] == _AWAITED
    finally:
        system.pthread_mutex_unlock(lock)
    thread.join()  # what it draws is not to come between what others draw
    return found


def _is_same(draw: Draw, generator: torch.Generator) -> bool:
    """Whether torch draws the same from the same states, also where a draw ends within a block of the generator's."""
    for size, p in ((1, 0.5), (311, 0.9), (1000, 0.1), (3, 1.0), (700, 0.0)):
        before = generator.get_state()
        expected = torch.empty(size, device="cpu").bernoulli_(p, generator=generator)
        after = generator.get_state()
        for dtype in (torch.float32, torch.bool):
            made = torch.empty(size, dtype=dtype, device="cpu")
            draw(generator.set_state(before), made, p)
            if not torch.equal(made, expected.to(dtype)) or not torch.equal(generator.get_state(), after):
                return False
    return True
