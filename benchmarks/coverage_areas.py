"""Owns the sources of the cases: the programs of `corpus`, databases of torch, the architectures, our own tests.

The databases are the databases of torch's own tests; they were written without regard to compilers or to minidynamo.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.coverage_case import Case, Corpus
from examples.models import ARCHITECTURES

ROOT = Path(__file__).parent.parent
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def corpus(subject: str) -> list[Case]:
    """Returns the programs of `benchmarks/corpus/SUBJECT.py`."""
    found = importlib.import_module(f"benchmarks.corpus.{subject}").programs
    assert isinstance(found, Corpus)
    return found


def run_model(model: nn.Module, *args: Any) -> Any:
    """Calls the model: the function that a user compiles."""
    return model(*args)


def architectures() -> list[Case]:
    """Returns the architectures of `examples/models`."""

    def make(name: str) -> Any:
        architecture = ARCHITECTURES[name]
        return (architecture.make(), *architecture.inputs())

    return [Case(name, run_model, (partial(make, name),) * 2) for name in ARCHITECTURES]


def own_tests() -> list[Case]:
    """Returns every program of a collector in `tests/end_to_end`."""
    return [case for path in sorted((ROOT / "tests/end_to_end").rglob("test_*.py")) for case in _programs_of(path)]


def _programs_of(path: Path) -> Iterator[Case]:
    if " = Programs()" not in path.read_text(encoding="utf-8"):
        return
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for parameter in module.programs:
        program = parameter.values[0]
        yield Case(f"{path.stem[5:]}.{parameter.id}", program.fn, (program.inputs[0], program.inputs[-1]))


# torch's databases


def _apply(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    return apply


def operators(form: str) -> list[Case]:
    """Returns the operators with this form: ``op`` (as a function), ``method_variant``, ``inplace_variant``."""
    database = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    cases = []
    for info in database:
        function = getattr(info, form)
        kinds = [dtype for dtype in DTYPES if dtype in info.supported_dtypes("cpu")]
        undefined = "empty" in info.name  # uninitialized memory
        if function is None or not kinds or undefined or (form != "op" and info.variant_test_name):
            continue
        grad = info.supports_autograd and form != "inplace_variant"
        makers = tuple(partial(_sample, info, kinds[0], grad, number) for number in (0, 1))
        cases.append(Case(f"{info.name} {info.variant_test_name}".strip(), _apply(function), makers))
    return cases


def _sample(info: Any, dtype: torch.dtype, grad: bool, number: int) -> Any:
    """Returns the arguments of call number `number`; the last sample if the operator has too few."""
    samples = list(itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=grad), number + 1))
    sample = samples[-1]
    return (sample.input, *sample.args), sample.kwargs


def modules() -> list[Case]:
    """Returns each module of the database, in training, with its first two kinds of arguments."""
    database = importlib.import_module("torch.testing._internal.common_modules").module_db
    cases = []
    for info in database:
        for number in range(2):
            make = partial(_module, info, number)
            cases.append(Case(f"{info.name} {number}", _call_module, (make, make)))
    return cases


def _module(info: Any, number: int) -> Any:
    kinds = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True)
    kind = [kind for kind in kinds if kind.forward_input is not None][number]
    made = info.module_cls(*kind.constructor_input.args, **kind.constructor_input.kwargs)
    return made, kind.forward_input.args, kind.forward_input.kwargs


def _call_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return module(*args, **kwargs)


def optimizers() -> list[Case]:
    """Returns a step of each optimizer, with each of its first six settings: the first step, which creates the state,
    and a second step.

    Skips the decorators of `step`, since they request graph breaks of torch.compile; the programs have whole steps.
    """
    database = importlib.import_module("torch.testing._internal.common_optimizers").optim_db
    cases = []
    for info in database:
        for number, setting in enumerate(info.optim_inputs_func("cpu")[:6]):
            makers = tuple(partial(_optimizer, info.optim_cls, setting.kwargs, steps) for steps in (0, 1))
            cases.append(Case(f"{info.optim_cls.__name__} {number}: {setting.desc}", _step, makers))
    return cases


def _optimizer(cls: Any, settings: dict[str, Any], steps: int) -> Any:
    shapes = [(3, 4), (4, 2)] if cls.__name__ == "Muon" else [(3, 4), (4,)]
    parameters = [nn.Parameter(torch.randn(*shape)) for shape in shapes]
    for parameter in parameters:
        gradient = torch.randn_like(parameter)
        parameter.grad = gradient.to_sparse() if cls.__name__ == "SparseAdam" else gradient
    optimizer, update = cls(parameters, **settings), inspect.unwrap(cls.step)
    arguments = (_no_loss,) if cls.__name__ == "LBFGS" else ()
    for _ in range(steps):
        with torch.no_grad():
            update(optimizer, *arguments)
    return update, optimizer, arguments, parameters


def _no_loss() -> torch.Tensor:
    return torch.zeros(())


def _step(update: Any, optimizer: Any, arguments: tuple[Any, ...], parameters: list[nn.Parameter]) -> Any:
    with torch.no_grad():
        update(optimizer, *arguments)
    return [parameter * 2 for parameter in parameters]


SUBJECTS = (
    "language",
    "objects",
    "tensors",
    "modules",
    "libraries",
    "training",
    "transformers",
    "tutorials",
    "papers",
    "structures",
    "applications",
    "practice",
    "utilities",
)

AREAS: dict[str, Callable[[], list[Case]]] = {
    **{f"programs: {subject}": partial(corpus, subject) for subject in SUBJECTS},
    "architectures": architectures,
    "torch's modules": modules,
    "torch's operators": partial(operators, "op"),
    "torch's operators as methods": partial(operators, "method_variant"),
    "torch's operators in place": partial(operators, "inplace_variant"),
    "torch's optimizers": optimizers,
    "programs of the tests": own_tests,
}
