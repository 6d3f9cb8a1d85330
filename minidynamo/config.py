"""Owns the settings: one typed record for all files, changed through `config.patch`.

It is the only file that reads `os.environ`. Settings that change generated code are part of every cache key; all other
settings only change output or the location of files.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minidynamo.errors import ArgumentError, Diagnostic, MinidynamoError, UnknownName, nearest

_PREFIX = "MINIDYNAMO_"


FILTERING_MODES = ("donated", "no_static", "all")
STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


def _option(default: Any, doc: str, *, changes_code: bool = False, most: float = math.inf, known: Any = ()) -> Any:
    """Declares a setting. Numbers are from 0 to `most`; `known` lists the allowed texts."""
    return field(default=default, metadata={"doc": doc, "changes_code": changes_code, "most": most, "known": known})


@dataclass(frozen=True)
class Config:
    """Every setting, with its default. `Config().describe()` lists all."""

    disable: bool = _option(False, "run every compiled function eagerly")
    stance: str = _option(
        "default", "what to do when a call must be compiled; set_stance() changes it temporarily", known=STANCES
    )
    backend: str = _option("native", "backend used when compile() names none")
    cache_dir: str = _option("", "folder of generated code; empty means the user's cache folder")
    graph_cache: bool = _option(True, "keep compiled graphs in the cache folder, for the next process")
    cache_limit_mb: int = _option(
        1024, "size limit of stored graphs and kernels, in MiB; the least recently used are removed"
    )
    captured_backward: bool = _option(False, "capture every backward of the process, as captured_backward() does")
    profile: str = _option("", "name of the job whose changing sizes are stored for its next run; empty: none are")
    debug_dir: str = _option("", "also write every artifact below this folder")
    logs: str = _option("", "what to log, in torch's grammar")
    verbose: bool = _option(False, "show minidynamo's own frames in errors")
    progress: str = _option(
        "auto", "progress line for compiles over two seconds: auto, 0 or 1", known=("auto", "0", "1")
    )
    cxx: str = _option("", "C++ compiler; empty means the first of c++, g++, clang++")
    cxx_timeout: int = _option(60, "seconds after which a C++ compiler counts as hanging")
    threads: int = _option(0, "threads of a CPU kernel; 0 means torch.get_num_threads()", changes_code=True)
    min_parallel_elements: int = _option(16384, "smallest loop that runs on several threads", changes_code=True)
    fuse: bool = _option(True, "fuse loops into one kernel", changes_code=True)
    recompute: bool = _option(True, "let the partitioner recompute cheap values in backward", changes_code=True)
    activation_budget: float = _option(
        1.0, "how much forward may save for backward: 1 as usual, 0 as little as possible", changes_code=True, most=1.0
    )
    channels_last: bool = _option(
        True, "let generated code lay out images with channels last between convolutions", changes_code=True
    )
    decompose: bool = _option(True, "split composite ATen operations before lowering", changes_code=True)
    saved_tensors_hooks_filtering_mode: str = _option(
        "donated",
        "which saved tensors inlined saved-tensor hooks apply to: donated, no_static or all",
        changes_code=True,
        known=FILTERING_MODES,
    )
    verify_ir: bool = _option(True, "check the loop IR between stages")

    def code_key(self) -> tuple[tuple[str, Any], ...]:
        """Returns name and value of each setting that changes generated code, in the order of the fields."""
        return tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.metadata["changes_code"])

    def describe(self) -> str:
        """Returns one line per setting: name, value, meaning."""
        return "\n".join(f"{f.name} = {getattr(self, f.name)!r}: {f.metadata['doc']}" for f in dataclasses.fields(self))

    @classmethod
    def from_environment(cls) -> Config:
        """Returns the defaults, overridden by MINIDYNAMO_<FIELD> in upper case.

        Raises UnknownName for MINIDYNAMO_ with another name, and when a value cannot be read as the field's type.
        """
        values: dict[str, Any] = {}
        known = [f"{_PREFIX}{name.upper()}" for name in _names()]
        for name in os.environ:
            if name.startswith(_PREFIX) and name not in known:
                what = f"there is no setting {name}.{nearest(name, known)}"
                raise UnknownName(Diagnostic("MD101", what, fix=f"Settings: {', '.join(_names())}."))
        for f in dataclasses.fields(cls):
            text = os.environ.get(f"{_PREFIX}{f.name.upper()}")
            if text is not None:
                values[f.name] = _parse(f.name, text, type(f.default))
        return with_changes(cls(), values)


def _parse(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
    elif kind is float:
        with contextlib.suppress(ValueError):
            return float(text)
    elif kind is not int or text.lstrip("-").isdigit():
        return kind(text)
    raise UnknownName(
        Diagnostic(
            "MD101",
            f"MINIDYNAMO_{name.upper()}={text!r} is not {'a switch' if kind is bool else 'a number'}",
            why=f"The setting `{name}` is of type {kind.__name__}.",
            fix="Use 1 or 0." if kind is bool else "Use a whole number." if kind is int else "Use a number.",
        )
    )


class Settings:
    """The current `Config`, shared by all threads. Attributes read through; `patch` changes settings temporarily.

    Printed, it lists every setting with its value and meaning.
    """

    def __init__(self, current: Config) -> None:
        self.__dict__["_shared"] = current
        self.__dict__["_here"] = contextvars.ContextVar("settings", default=None)
        self.__dict__["_listeners"] = []

    @property
    def current(self) -> Config:
        """Returns the record in force."""
        record: Config = self.__dict__["_here"].get() or self.__dict__["_shared"]
        return record

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback()` after each change of the settings that all threads share."""
        self.__dict__["_listeners"].append(callback)

    def _share(self, record: Config) -> None:
        before = self.__dict__["_shared"]
        if record == before:
            return
        self.__dict__["_shared"] = record
        try:
            for callback in self.__dict__["_listeners"]:
                callback()
        except MinidynamoError:  # only a reader can reject such a value
            self._share(before)
            raise

    def __getattr__(self, name: str) -> Any:
        if name not in Config.__dataclass_fields__:
            raise AttributeError(f"minidynamo.config has no setting {name!r}.{nearest(name, _names())}")
        return getattr(self.current, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._share(with_changes(self.__dict__["_shared"], {name: value}))

    def __dir__(self) -> list[str]:
        return [*_names(), "current", "patch"]

    def __repr__(self) -> str:
        changed = {name: value for name, value in vars(self.current).items() if value != vars(Config())[name]}
        return f"minidynamo.config({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __str__(self) -> str:
        return self.current.describe()

    @contextlib.contextmanager
    def using(self, record: Config) -> Iterator[None]:
        """Puts `record` in force inside the block, for this thread alone; graphs are compiled this way."""
        here = self.__dict__["_here"]
        token = here.set(record)
        try:
            yield
        finally:
            here.reset(token)

    def patch(self, **changes: Any) -> contextlib._GeneratorContextManager[None]:
        """Changes settings inside a `with` block or, as a decorator, during a call.

        Raises UnknownName for a setting that does not exist and ArgumentError for a value of the wrong type.
        """
        with_changes(self.current, changes)  # a decorator raises errors at its own line, not in the first call
        return self._patched(changes)

    @contextlib.contextmanager
    def _patched(self, changes: dict[str, Any]) -> Iterator[None]:
        if self.__dict__["_here"].get() is not None:
            with self.using(with_changes(self.current, changes)):
                yield
            return
        before = self.__dict__["_shared"]
        self._share(with_changes(before, changes))
        try:
            yield
        finally:
            self._share(before)


def set_default_variable(name: str, value: str) -> None:
    """Sets an environment variable for other libraries, unless the user has set it."""
    os.environ.setdefault(name, value)


def _names() -> list[str]:
    return [f.name for f in dataclasses.fields(Config)]


def with_changes(record: Config, changes: dict[str, Any]) -> Config:
    """Returns the record with these fields set.

    Raises UnknownName for a setting that does not exist and ArgumentError for a value of the wrong type.
    """
    checked = {name: _checked(name, value) for name, value in changes.items()}
    return dataclasses.replace(record, **checked)


def _checked(name: str, value: Any) -> Any:
    """Returns the value in the type of the setting: a whole number is accepted for a float."""
    if name not in Config.__dataclass_fields__:
        what = f"minidynamo.config has no setting {name!r}.{nearest(name, _names())}"
        raise UnknownName(Diagnostic("MD101", what, fix=f"Settings: {', '.join(_names())}."))
    setting: dataclasses.Field[Any] = Config.__dataclass_fields__[name]
    default: Any = setting.default
    expected = type(default)
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected:
        what = f"setting `{name}` must be {expected.__name__}, not {type(value).__name__}"
        raise ArgumentError(Diagnostic("MD101", what, fix=f"The default is {default!r}."))
    known, most = setting.metadata["known"], setting.metadata["most"]
    if known and value not in known:
        what = f"setting `{name}` cannot be {value!r}.{nearest(value, known)}"
        raise UnknownName(Diagnostic("MD101", what, fix=f"Use one of {', '.join(known)}."))
    if expected in (int, float) and not 0 <= value <= most:
        what = f"setting `{name}` must be {f'from 0 to {most:g}' if most < math.inf else 'at least 0'}, not {value}"
        raise ArgumentError(Diagnostic("MD101", what, fix=f"The default is {default!r}."))
    return value


config = Settings(Config.from_environment())
