"""Recurrent modules and cells are captured whole; sequences of different lengths break where lengths are needed."""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from minidynamo import compile as compile_function
from minidynamo.testing import CompileCounter, assert_same_as_eager, no_recompile
from tests.end_to_end.programs import Programs
from tests.pairs import pairs

programs = Programs()
KINDS = (nn.RNN, nn.LSTM, nn.GRU)


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True, "dropout": 0.25}, {"batch_first": True, "bias": False}],
    ids=["plain", "deep", "without bias"],
)
def test_recurrent_module(kind, options):
    outputs, state = {}, {}
    for compiled in (False, True):
        torch.manual_seed(0)
        module = kind(3, 4, **options)
        counter = CompileCounter()
        if compiled:
            compile_function(module, backend=counter, fullgraph=True)
        torch.manual_seed(1)
        x = torch.randn(5, 2, 3, requires_grad=True)
        first, hidden = module(x)
        second, _ = module(x, hidden)
        (first.sum() + second.sum()).backward()
        outputs[compiled] = [first, second, x.grad, *(p.grad for p in module.parameters())]
        state[compiled] = counter.frame_count
    torch.testing.assert_close(outputs[True], outputs[False])
    assert state == {False: 0, True: 2}  # with and without a hidden state


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("cpp", marks=pytest.mark.cpp)])
@pytest.mark.parametrize("training", [True, False])
def test_training_of_what_onednn_computes(backend, training):
    lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True).train(training)
    assert_same_as_eager(lambda x: lstm(x)[0], lambda: (torch.randn(2, 5, 3, requires_grad=True),), backend=backend)
    x = torch.randn(2, 5, 3)
    lstm.zero_grad(set_to_none=True)
    lstm(x)[0].sum().backward()
    expected = [p.grad for p in lstm.parameters()]
    lstm.zero_grad(set_to_none=True)
    compile_function(lambda x: lstm(x)[0].sum(), backend=backend)(x).backward()
    torch.testing.assert_close([p.grad for p in lstm.parameters()], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_change_are_noticed(kind):
    module = kind(3, 4)
    reference = kind(3, 4)
    compiled = compile_function(lambda x: module(x)[0], backend="eager")
    x = torch.randn(5, 2, 3)
    compiled(x)
    module.weight_hh_l0 = nn.Parameter(torch.full_like(module.weight_hh_l0, 0.25))
    torch.testing.assert_close(compiled(x), module(x)[0])
    module.load_state_dict(reference.state_dict())
    torch.testing.assert_close(compiled(x), reference(x)[0])
    with torch.no_grad():
        module.bias_ih_l0.mul_(3)
    with no_recompile():
        torch.testing.assert_close(compiled(x), module(x)[0])
    module.double()
    torch.testing.assert_close(compiled(x.double()), module(x.double())[0])


RECURRENT = {
    **{kind.__name__: kind for kind in KINDS},
    "with projections": functools.partial(nn.LSTM, proj_size=3),
    **{f"{kind.__name__} and dropout": functools.partial(kind, dropout=0.5) for kind in KINDS},
}
# All kinds share the dropout between layers; `test_scalar_arguments.py` covers the dropped elements of each kind, too.
NAMES = [
    pytest.param(n, marks=pytest.mark.slow) if n in ("RNN and dropout", "GRU and dropout") else n for n in RECURRENT
]
DTYPES = [torch.float32, torch.float64]


# In float32 an LSTM is one operation of oneDNN; all further kinds run the same operations in both dtypes.
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name, dtype", pairs(NAMES, DTYPES, full=["LSTM"], always=[torch.float32]), ids=str)
def test_batches_of_varying_size_are_computed_as_eager_does(name, dtype):
    """Checks results and gradients to the last bit, computed by one compiled version."""
    module = RECURRENT[name](4, 6, 2, bidirectional=True, batch_first=True).to(dtype)

    def run(function, batch):
        torch.manual_seed(0)
        x = torch.randn(batch, 2, 4, dtype=dtype, requires_grad=True)
        module.zero_grad(set_to_none=True)
        y = function(x)
        y.square().sum().backward()
        return [y, x.grad, *(p.grad for p in module.parameters())]

    compiled = compile_function(lambda x: module(x)[0], backend="aot_eager", dynamic=True, fullgraph=True)
    run(compiled, 5)
    with no_recompile():
        for batch in (5, 17, 33):
            torch.testing.assert_close(run(compiled, batch), run(lambda x: module(x)[0], batch), rtol=0, atol=0)


def inputs(make, *shape):
    return lambda: (make(), torch.randn(*shape))


@programs(inputs(lambda: nn.LSTMCell(3, 4), 5, 2, 3))
def loop_over_a_cell(cell, xs):
    hidden, memory = torch.zeros(2, 4), torch.zeros(2, 4)
    outputs = []
    for x in xs:
        hidden, memory = cell(x, (hidden, memory))
        outputs.append(hidden)
    return torch.stack(outputs), memory


@programs(inputs(lambda: nn.GRUCell(3, 3), 2, 3))
def cells_in_a_row(cell, x):
    for _ in range(3):
        x = cell(x)
    return x


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.lstm = nn.LSTM(4, 4, bidirectional=True, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        self.lstm.flatten_parameters()
        states, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.head(states), hidden[-1]


@programs(lambda: (Tagger(), torch.tensor([[1, 2, 3], [4, 5, 0]])))
def tagger(m, tokens):
    return m(tokens)


@programs(lambda: (nn.GRU(3, 4), torch.randn(5, 2, 3), torch.tensor([5, 3])), graphs=1, breaks=3)
def sequences_of_different_lengths(gru, x, lengths):
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
    states, hidden = gru(packed)
    return nn.utils.rnn.pad_packed_sequence(states)[0] * 2, hidden


@programs(
    lambda: (nn.LSTM(3, 4), nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 3]))),
    lambda: (nn.LSTM(3, 4), nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([4, 2]))),
    graphs=4,  # before and after the LSTM, for two lengths
    breaks=2,
)
def sequences_that_are_packed_outside(lstm, packed):
    scaled = packed._replace(data=packed.data * 2)
    states, (hidden, _) = lstm(scaled)
    return states.data * 2, hidden


def test_a_long_recurrent_layer_is_left_to_torch():
    layer = nn.GRU(2, 3, num_layers=2)
    compiled, counter = CompileCounter(), CompileCounter()
    for backend, fullgraph in ((compiled, False), (counter, True)):
        f = compile_function(lambda x: layer(x * 2)[0].sin(), backend=backend, fullgraph=fullgraph)
        x = torch.randn(33, 1, 2)
        torch.testing.assert_close(f(x), layer(x * 2)[0].sin())
        assert f.stats.graph_breaks == (not fullgraph)
    assert (compiled.frame_count, counter.frame_count) == (2, 1)


def test_an_lstm_of_onednn_is_one_call_whatever_its_length():
    layer = nn.LSTM(2, 3)
    f = compile_function(lambda x: layer(x)[0], backend=CompileCounter())
    f(torch.randn(300, 1, 2))
    assert f.stats.graph_breaks == 0
