"""The text of loop programs and kernels, as golden files."""

import torch

from minidynamo.codegen.ir.text import kernel_text, program_text
from minidynamo.codegen.lowering.graph import lower_graph
from tests.codegen.graphs import kernels, located, located_kernels, lower

F = torch.nn.functional

PROGRAMS = {
    "pointwise": (lambda x, y: torch.tanh(x) * torch.sigmoid(y) + torch.exp(-x * x), *torch.ones(2, 8, 16)),
    "softmax": (lambda x: torch.softmax(x, -1), torch.ones(8, 16)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (16,), w, b), torch.ones(8, 16), torch.ones(16), torch.ones(16)),
    "half_with_view": (lambda x: (x + 1) * x.view(16, 8).t(), torch.ones(8, 16, dtype=torch.bfloat16)),
    "column_sum": (lambda x: (x * 2).sum(0), torch.ones(64, 10)),
    "split_sum": (lambda x: x.sum(), torch.ones(512, 512)),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, torch.ones(10, 4), torch.ones(3, dtype=torch.int64)),
    "matmul": (lambda x, w: torch.relu(x @ w.t()).argmax(1), torch.ones(8, 16), torch.ones(4, 16)),
}


def test_loop_programs(golden):
    for name, (function, *args) in PROGRAMS.items():
        golden(program_text(lower(function, *args)), f"loops/{name}.program.txt")


def test_kernels(golden):
    for name, (function, *args) in PROGRAMS.items():
        golden("\n".join(map(kernel_text, kernels(function, *args))), f"loops/{name}.kernels.txt")


def test_lines_of_the_user_are_named_once_where_they_begin(golden):
    golden(program_text(lower_graph(located())), "loops/located.program.txt")
    golden("\n".join(map(kernel_text, located_kernels())), "loops/located.kernels.txt")
