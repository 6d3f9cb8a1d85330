"""Owns the examination of one program of a library: run as `python -m benchmarks.library_worker NAME`, compares both
compilers with eager and prints the finding as one line of JSON.

The process is warm: the one-time imports of a compiler are not counted. The graphs run as captured.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, fx, nn

import minidynamo
from benchmarks.libraries import OURS, TORCH, Finding, Seen
from benchmarks.library_programs import PROGRAMS, Program
from benchmarks.vision_operators import import_torchvision

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """Makes a call with `batch` sequences of `length` tokens; in training its gradients are compared, too."""

    batch: int
    length: int
    training: bool


# The shapes vary from the third step on; the last step needs no new compile.
STEPS = (Step(2, 10, False), Step(2, 10, True), Step(3, 12, True), Step(4, 16, True), Step(2, 10, True))
GENERATED = (Step(2, 7, False), Step(2, 7, False))
NEW_TOKENS = 12


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 99, shape)


def text(step: Step) -> Inputs:
    mask = torch.ones(step.batch, step.length, dtype=torch.long)
    mask[0, -2:] = 0
    return {"input_ids": tokens(step.batch, step.length), "attention_mask": mask}


def language(step: Step) -> Inputs:
    inputs = text(step)
    return {**inputs, "labels": inputs["input_ids"].clone()}


def pictures(step: Step) -> Inputs:
    return {"pixel_values": torch.randn(step.batch, 3, 32, 32)}


def pictures_of_sizes(step: Step) -> Inputs:
    """Patches of 4 by 4, and the height and width of each picture in patches."""
    height, width = step.length // 2, 3
    return {
        "pixel_values": torch.randn(step.batch, height * width, 48),
        "pixel_attention_mask": torch.ones(step.batch, height * width, dtype=torch.long),
        "spatial_shapes": torch.tensor([[height, width]] * (step.batch - 1) + [[width, height]]),
    }


def sound(step: Step) -> Inputs:
    return {"input_values": torch.randn(step.batch, 800 + 16 * step.length), "labels": tokens(step.batch, 4) % 19 + 1}


INPUTS: dict[str, Callable[[Step], Inputs]] = {
    "text": text,
    "language": language,
    "classes": lambda step: {**text(step), "labels": torch.randint(0, 2, (step.batch,))},
    "sequences": lambda step: {**text(step), "labels": tokens(step.batch, step.length // 2)},
    "pictures": pictures,
    # Patches of 8 by 8 are kept in the order of the noise, which models would draw themselves.
    "masked pictures": lambda step: {**pictures(step), "noise": torch.rand(step.batch, 16)},
    "captions": lambda step: {**text(step), **pictures(step)},
    "labelled pictures": lambda step: {**language(step), **pictures(step)},
    "pictures of sizes": pictures_of_sizes,
    "video": lambda step: {"pixel_values": torch.randn(step.batch, 4, 3, 32, 32)},
    "points": lambda step: {
        **pictures(step),
        "input_points": 30 * torch.rand(step.batch, 1, 2, 2),
        "input_labels": torch.ones(step.batch, 1, 2, dtype=torch.long),
    },
    "perceived": lambda step: {"inputs": tokens(step.batch, step.length)},
    "speech": lambda step: {
        "input_features": torch.randn(step.batch, 8, 40),
        "labels": tokens(step.batch, step.length // 2),
    },
    "sound": sound,
    "tokens": lambda step: {"input_ids": (ids := tokens(step.batch, step.length)), "labels": ids.clone()},
    "spectrogram": lambda step: {
        "input_values": torch.randn(step.batch, 40, 16),
        "labels": torch.randint(0, 2, (step.batch,)),
    },
    "frames": lambda step: {
        "input_features": torch.randn(step.batch, 40, 8),
        "labels": tokens(step.batch, step.length // 2),
    },
    "series": lambda step: {
        "past_values": torch.randn(step.batch, 16, 2),
        "future_values": torch.randn(step.batch, 4, 2),
    },
    "dated series": lambda step: {
        "past_values": torch.randn(step.batch, 15),
        "past_time_features": torch.randn(step.batch, 15, 1),
        "past_observed_mask": torch.ones(step.batch, 15),
        "future_values": torch.randn(step.batch, 4),
        "future_time_features": torch.randn(step.batch, 4, 1),
    },
    "samples": lambda step: {
        "input_values": torch.randn(step.batch, 2000),
        "labels": tokens(step.batch, step.length // 2),
    },
    "timm": lambda step: {"x": torch.randn(step.batch, 3, 32, 32)},
}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Returns the tensors of a result: of tuples, dicts and caches of keys and values."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from tensors_in(element)
    elif hasattr(value, "layers"):
        yield from tensors_in([(layer.keys, layer.values) for layer in value.layers if hasattr(layer, "keys")])


def difference(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """Returns the largest distance of two elements, as a share of the largest element of its tensor.

    Infinite where tensors are missing, differ in kind, or differ in the positions of non-finite elements.
    """
    if len(actual) != len(expected):
        return math.inf
    return max((_distance(mine, theirs) for mine, theirs in zip(actual, expected)), default=0.0)


def _distance(actual: Tensor | None, expected: Tensor | None) -> float:
    if actual is None or expected is None:
        return 0.0 if actual is expected else math.inf
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return math.inf
    # Equal infinities and NaN have no distance, and their size is no scale for the remaining elements.
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    if bool(same.all()):
        return 0.0
    gap = (actual.double() - expected.double()).abs().masked_fill(same, 0).max().item()
    largest = expected.double().abs().nan_to_num(0, 0, 0).max().item()
    return gap / largest if math.isfinite(gap) and largest else math.inf


def make(program: Program) -> Any:
    """Builds the model, with the same weights each time."""
    import_torchvision()
    torch.manual_seed(0)
    if not program.config:
        return importlib.import_module("timm").create_model(program.model, num_classes=5, **program.settings)
    transformers = importlib.import_module("transformers")
    # The model writes to sub-configurations, so it gets its own dicts.
    settings = {key: dict(value) if isinstance(value, dict) else value for key, value in program.settings.items()}
    model = getattr(transformers, program.model)(getattr(transformers, program.config)(**settings))
    if program.lora:
        peft = importlib.import_module("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"]))
    return model


def take(model: Any, call: Any, program: Program, step: Step, seed: int) -> tuple[list[Tensor], list[Tensor | None]]:
    """Returns results and gradients of one step."""
    torch.manual_seed(seed)
    numpy.random.seed(seed)  # wav2vec2 masks with numpy
    inputs = INPUTS[program.inputs](step)
    model.train(step.training)
    if program.generate is not None:
        return [model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, **program.generate)], []
    if not step.training:
        with torch.no_grad():
            return list(tensors_in(call(**inputs))), []
    output = call(**inputs)
    results = list(tensors_in(output))
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if loss is None:
        loss = torch.stack([result.float().square().mean() for result in results if result.requires_grad]).sum()
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [result.detach() for result in results], gradients


def counting(counts: list[object]) -> Callable[..., Any]:
    """Returns a backend that runs graphs unchanged and counts the graphs."""

    def backend(graph: fx.GraphModule, example_inputs: object) -> Any:
        counts.append(None)
        return graph.forward

    return backend


COMPILE: dict[str, Callable[..., Any]] = {OURS: minidynamo.compile, TORCH: torch.compile}
RESET: dict[str, Callable[[], None]] = {OURS: minidynamo.reset, TORCH: torch.compiler.reset}


def look(system: str, program: Program) -> Seen:
    """Runs every step of the program, compiled by `system`, next to eager."""
    expected_model, model = make(program), make(program)
    steps = STEPS if program.generate is None else GENERATED
    take(expected_model, expected_model, program, steps[0], 0)  # the lazy parts of libraries
    graphs: list[object] = []
    cuts: list[object] = []
    torch_cuts = torch._dynamo.utils.counters["graph_break"]
    torch_cuts.clear()
    unsubscribe = minidynamo.on_event(lambda event: cuts.append(event) if event.kind == "graph_break" else None)
    call = COMPILE[system](model if program.generate is None else model.forward, backend=counting(graphs))
    if program.generate is not None:
        model.forward = call
    seconds, results, gradients = 0.0, 0.0, 0.0
    for seed, step in enumerate(steps):
        expected = take(expected_model, expected_model, program, step, seed)
        start = time.perf_counter()
        actual = take(model, call, program, step, seed)
        seconds = seconds or time.perf_counter() - start
        results = max(results, difference(actual[0], expected[0]))
        gradients = max(gradients, difference(actual[1], expected[1]))
    unsubscribe()
    breaks = len(cuts) if system == OURS else sum(torch_cuts.values())
    return Seen(len(graphs), breaks, results, gradients, seconds)


def warm_up() -> None:
    """Imports the modules that the compilers import with their first graph."""
    for system, compile in COMPILE.items():
        compile(nn.Linear(2, 2), backend=counting([]))(torch.ones(1, 2))
        RESET[system]()


def find_out(name: str) -> Finding:
    """Returns both compilers' outcomes; for a compiler that raises, its error."""
    seen: dict[str, Seen] = {}
    for system in COMPILE:
        try:
            seen[system] = look(system, PROGRAMS[name])
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            seen[system] = Seen(error=f"{type(error).__name__}: {lines[0][:200]}")
        RESET[system]()
    return Finding(name, PROGRAMS[name].other_path, seen[OURS], seen[TORCH])


def main() -> None:
    """Examines the program that is named on the command line."""
    # The reader of the results must not see the output of libraries.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    warm_up()
    print(json.dumps(asdict(find_out(sys.argv[1]))), file=out, flush=True)


if __name__ == "__main__":
    main()
