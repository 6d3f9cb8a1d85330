"""Numbers that change from call to call and enter ATen calls, kernels and sizes alike."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import minidynamo
from tests.end_to_end.programs import rows_of

BACKENDS = ["eager", "aot_eager", "native"]


class Programs:
    def dropout(x, p):
        return F.dropout(x, p)

    def dropout_in_dropout(x, p):
        return F.dropout(F.dropout(x, p) * p, 1 - p)

    def drawn(x, p):
        q = 1 - p
        return x * torch.bernoulli(torch.full_like(x, 1), q) / q + q

    def product_and_kernel(x, p):
        s = 1.0 - p
        return torch.addmm(x, x, x, alpha=s, beta=p * 2) * s + p

    def made_and_kernel(x, p):
        s = p * 3.0
        y = torch.full((4,), s)
        return x * s + y, torch.where(x > s, y, s)

    def sizes_and_kernel(x, p):
        n = x.shape[0]
        s = p / n
        y = torch.mm(x, x).add(x, alpha=s)
        return torch.addmm(y, x, x, alpha=s) * s * n + n * s


class Scheduled(nn.Module):
    """A module whose rate a schedule sets."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.1)

    def forward(self, x, p):
        self.dropout.p = p
        return self.dropout(self.linear(x)) * p


def scheduled():
    torch.manual_seed(3)
    return Scheduled()


def results(function, p, requires_grad):
    torch.manual_seed(int(p * 100))
    x = torch.randn(4, 4, requires_grad=requires_grad)
    made = function(x, p)
    made = made if isinstance(made, tuple) else (made,)
    gradients = torch.autograd.grad(sum(t.sum() for t in made), x) if requires_grad else ()
    return [*made, *gradients]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", [*rows_of(Programs), scheduled])
def test_a_number_that_changes_is_there_for_all_that_read_it(program, requires_grad, backend):
    eager, compiled = (program(), program()) if program is scheduled else (program, program)
    compiled = minidynamo.compile(compiled, backend=backend)
    for p in (0.3, 0.4, 0.55):
        torch.testing.assert_close(results(compiled, p, requires_grad), results(eager, p, requires_grad))
