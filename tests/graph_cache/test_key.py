"""Keys of graphs: equal for equal programs in every process, different for everything that changes the code."""

import pytest
import torch
from torch import fx
from torch.nn import functional

from minidynamo.compat import FakeTensorMode
from minidynamo.errors import UserLocation
from minidynamo.graph_cache.encoding import NotStorable
from minidynamo.graph_cache.key import differences, is_replaced, key_of


def fake(*shape, **facts):
    with FakeTensorMode():
        return torch.empty(*shape, **facts)


def key(program, *inputs, options=(), tools=()):
    return key_of(fx.symbolic_trace(program), inputs, dict(options), dict(tools))


def program(x, y):
    return (functional.relu(x @ y, inplace=False).sum(dim=(0, 1)) + 1.5).to(torch.float64)


def text(program=program, inputs=None, **how):
    return key(program, *(inputs or (fake(2, 3), fake(3, 2))), **how).text


def test_the_text_is_readable():
    found = text(options={"fuse": True, "target": "cpp"}, tools={"compiler": "g++ 12"})
    for line in (
        "  x = input",
        "  matmul = operator.matmul(%x, %y)",
        "  relu = torch.nn.functional.relu(%matmul, inplace=False)",
        "  sum_1 = .sum(%relu, dim=(0, 1,))",
        "  add = operator.add(%sum_1, 0x1.8000000000000p+0)",
        "  to = .to(%add, torch.float64)",
        "  return %to",
        "  x: torch.float32 [2, 3] strides [3, 1] offset 0 cpu is_leaf",
        "  fuse: True",
        "  grad_enabled: True",
        "  compiler: g++ 12",
        f"  torch: {torch.__version__} {torch.version.git_version}",
    ):
        assert f"{line}\n" in found


def test_equal_programs_have_equal_keys_wherever_they_stand():
    moved = fx.symbolic_trace(program)
    for number, node in enumerate(moved.graph.nodes):
        node.meta["user_location"] = UserLocation("/elsewhere/x.py", number, "f")
    assert key_of(moved, (fake(2, 3), fake(3, 2)), {}, {}).text == text()


CHANGES = {
    "operation": {"program": lambda x, y: (torch.relu(x @ y).sum(dim=(0, 1)) + 1.5).to(torch.float64)},
    "constant": {"program": lambda x, y: (functional.relu(x @ y, inplace=False).sum(dim=(0, 1)) + 1.6).double()},
    "shape": {"inputs": (fake(4, 3), fake(3, 2))},
    "strides": {"inputs": (fake(3, 2).t(), fake(3, 2))},
    "dtype": {"inputs": (fake(2, 3, dtype=torch.float64), fake(3, 2))},
    "requires_grad": {"inputs": (fake(2, 3, requires_grad=True), fake(3, 2))},
    "device": {"inputs": (fake(2, 3, device="meta"), fake(3, 2))},
    "kind": {"inputs": ([fake(2, 3)], fake(3, 2))},
    "options": {"options": {"fuse": False}},
    "tools": {"tools": {"compiler": "clang"}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_code_changes_the_key(change):
    assert text(**change) != text()


def test_history_changes_the_key():
    leaf = fake(2, 3, requires_grad=True)
    assert key(lambda x: x + 1, leaf).text != key(lambda x: x + 1, leaf * 2).text


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
        torch.inference_mode,
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ],
    ids=["no_grad", "autocast", "device", "inference", "attention"],
)
def test_modes_change_the_key(context):
    inputs = fake(2, 3), fake(3, 2)
    gm = fx.symbolic_trace(program)
    before = key_of(gm, inputs, {}, {}).text
    with context():
        assert key_of(gm, inputs, {}, {}).text != before
    assert key_of(gm, inputs, {}, {}).text == before


def test_a_setting_of_torch_changes_the_key():
    inputs = fake(2, 3), fake(3, 2)
    before = text(inputs=inputs)
    torch.use_deterministic_algorithms(True)
    try:
        assert text(inputs=inputs) != before
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_the_second_half_of_the_name_depends_on_the_tools():
    one, other = (key(lambda x: x + 1, fake(2), tools={"compiler": name}) for name in ("g++ 1", "g++ 2"))
    assert one.name != other.name and one.program_digest == other.program_digest


def helper(x):
    return x


fx.wrap("helper")


def holding(value):
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.held = value

        def forward(self, x):
            return x + self.held

    return Holder()


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda x: helper(x), "helper"),
        (holding(torch.ones(3)), "Tensor"),
        (torch.nn.Sequential(torch.nn.Linear(3, 3)), "calls the module"),
    ],
    ids=["function", "tensor", "module"],
)
def test_what_cannot_be_named(program, why):
    with pytest.raises(NotStorable, match=why):
        key(program, fake(3))


def test_a_function_that_was_put_into_torch_is_none_of_torchs(monkeypatch):
    monkeypatch.setattr(torch, "relu", helper)
    graph = fx.Graph()
    graph.output((graph.call_function(torch.relu, (graph.placeholder("x"),)),))
    with pytest.raises(NotStorable, match="not a part of torch"):
        key_of(fx.GraphModule(torch.nn.Module(), graph), (fake(3),), {}, {})


def test_a_function_with_a_name_of_the_users_can_be_told_apart():
    def keyed(name):
        gm = fx.symbolic_trace(lambda x: helper(x))
        for node in gm.graph.nodes:
            if node.op == "call_function":
                node.meta["user_cache_hash"] = name
        return key_of(gm, (fake(3),), {}, {}).text

    assert keyed("A") == keyed("A") != keyed("B")


def test_the_index_of_the_only_gpu_is_not_in_the_key():
    one, two = (key(lambda x: x + 1, fake(2, 3, device=torch.device("cuda", index))) for index in (0, 1))
    assert one.text == two.text and one.context != two.context
    both = key(lambda x, y: x + y, *(fake(2, 3, device=torch.device("cuda", index)) for index in (0, 1)))
    assert "cuda:1" in both.text
    moved = [key(lambda x: x.to("cuda:1"), fake(2, device=torch.device("cuda", index))).text for index in (0, 1)]
    assert moved[0] != moved[1]


@pytest.mark.parametrize("value", [torch.ones(2).to_sparse(), torch.nn.utils.rnn.PackedSequence], ids=str)
def test_inputs_without_facts(value):
    with pytest.raises(NotStorable):
        key(lambda x: x + 1, value)


def test_differences_are_lines():
    assert differences("a\nb: 1\nc\n", "a\nb: 2\nc\n") == ["- b: 1", "+ b: 2"]
    assert differences("a\n", "a\n") == []


def test_an_entry_is_described_by_the_users_line():
    traced = fx.symbolic_trace(program)
    locations = [UserLocation(torch.nn.functional.__file__, 1, "linear"), UserLocation("/home/me/train.py", 7, "step")]
    for node, place in zip(traced.graph.nodes, locations):
        node.meta["user_location"] = place
    assert key_of(traced, (fake(2, 3), fake(3, 2)), {}, {}).description.startswith("train.py:7 in step, 5 operations")


@pytest.mark.parametrize("replacement", [lambda self: self * 100, torch.Tensor.sum])
def test_a_graph_with_a_replaced_method_of_tensors_is_not_stored(replacement, monkeypatch):
    key(lambda x: x.mean(), fake(2))
    monkeypatch.setattr(torch.Tensor, "mean", replacement)
    with pytest.raises(NotStorable, match=r"replaced torch\.Tensor\.mean"):
        key(lambda x: x.mean(), fake(2))


def test_all_methods_of_tensors_are_torchs():
    assert [name for name in dir(torch.Tensor) if is_replaced(name)] == []
