"""Random programs are determined by their seeds, and run."""

import torch

from benchmarks.random_programs import arguments, load, random_program


def test_a_seed_tells_the_program():
    texts = [random_program(seed) for seed in range(8)]
    assert texts == [random_program(seed) for seed in range(8)] and len({*texts}) == 8


def test_programs_return_tensors_with_gradients():
    for seed in range(8):
        made = load(random_program(seed))(*arguments())
        made = made if isinstance(made, tuple) else (made,)
        assert made and all(isinstance(value, torch.Tensor) and value.requires_grad for value in made)
