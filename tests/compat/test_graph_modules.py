import torch

import minidynamo
from minidynamo import compat


def doubled():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), 2)))
    return graph


def is_written(module):
    return "_code" in vars(module)


def test_code_is_written_when_somebody_runs_or_reads_it():
    for use in (lambda module: module(torch.ones(1)), lambda module: module.code, str):
        module = compat.graph_module({}, doubled())
        assert not is_written(module)
        use(module)
        assert is_written(module) and module(torch.ones(1)) == 2
    with compat.traced_lazily():
        assert not is_written(torch.fx.symbolic_trace(lambda x: x * 2))


def test_somebody_elses_backend_is_given_ordinary_modules():
    given = []

    def backend(gm, example_inputs):
        given.append([is_written(part) for part in gm.modules() if isinstance(part, torch.fx.GraphModule)])
        return minidynamo.make_boxed_func(gm)

    @minidynamo.compile(backend=backend, fullgraph=True)
    def f(x):
        return minidynamo.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    assert f(torch.ones(1)) == 2
    assert given == [[True, True, True]]
