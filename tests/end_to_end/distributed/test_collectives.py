"""DDP-6: collectives are nodes of the graph, in the order of the program; facts about groups are guarded constants."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.graph.collectives import is_collective
from minidynamo.testing import EagerAndRecordGraphs
from tests.ranks import Ranks

programs = Ranks(__name__)
BACKENDS = ("eager", "aot_eager")


def values(rank, number=4):
    return torch.arange(float(number)) + 10 * rank


def check(program, rank, *args, graphs=1):
    """Compares the compiled program with eager on both ranks, for results, written arguments and gradients."""
    for backend in BACKENDS:
        outcomes = []
        for f in (program, minidynamo.compile(program, backend=backend, fullgraph=True)):
            x = values(rank).requires_grad_()
            made = f(x * 2, *args)
            if isinstance(made, torch.Tensor) and made.requires_grad:
                made.sum().backward()
            outcomes.append((made, x.grad))
        torch.testing.assert_close(outcomes[1], outcomes[0])
        assert minidynamo.stats(f).graphs == graphs


@programs
def DDP_6_in_place_collectives(rank):
    def program(x):
        y = x.detach() + 1
        dist.all_reduce(y)
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        dist.broadcast(y, src=1)
        gathered = torch.empty(8)
        dist.all_gather_into_tensor(gathered, y * (dist.get_rank() + 1))
        part = torch.empty(4)
        dist.reduce_scatter_tensor(part, gathered + rank)
        moved = torch.empty(4)
        dist.all_to_all_single(moved, part + 1)
        dist.barrier()
        return x.sin() + moved, y, gathered, part

    check(program, rank)


@programs
def DDP_6_collectives_with_lists_of_tensors(rank):
    def program(x):
        y = x.detach() + 1
        parts = [torch.empty(4), torch.empty(4)]
        dist.all_gather(parts, y)
        total = torch.empty(2)
        dist.reduce_scatter(total, list((y * parts[1 - rank]).chunk(2)))
        dist.reduce(y, 1, op=dist.ReduceOp.PRODUCT)
        whole = [torch.zeros(2), torch.zeros(2)] if rank == 1 else None
        dist.gather(total, whole, dst=1)
        piece = torch.empty(2)
        dist.scatter(piece, [total, total + 1] if rank == 0 else None, src=0)
        return x.sin() + parts[1], y if rank == 1 else None, parts, total, whole, piece

    check(program, rank)


@programs
def DDP_6_lists_that_are_exchanged(rank):
    def program(x):
        moved = list(torch.empty(4).chunk(2))
        dist.all_to_all(moved, list((x.detach() * 2).chunk(2)))
        return x.sin() + torch.cat(moved)

    try:
        program(values(rank))
    except RuntimeError as error:
        assert "gloo does not support alltoall" in str(error)  # in torch 2.11
        return
    check(program, rank)


@programs
def DDP_6_lists_of_the_caller_and_asynchronous_gathers(rank):
    def program(x, parts):
        work = dist.all_gather(parts, x.detach() + 1, async_op=True)
        z = x.cos()
        work.wait()
        return z + parts[0] * parts[1]

    def lists():
        return [torch.empty(4), torch.empty(4)]

    made, expected = lists(), lists()
    result = minidynamo.compile(program, backend="aot_eager", fullgraph=True)(values(rank), made)
    torch.testing.assert_close([result, made], [program(values(rank), expected), expected])


@programs
def DDP_6_sends_and_receives(rank):
    other, group = 1 - rank, dist.new_group([0, 1])

    def program(x):
        y, z = torch.empty(4), torch.empty(4)
        if rank == 0:
            dist.send(x.detach() * 2, 1)
            source = dist.recv(y, 1, tag=3)
        else:
            source = dist.recv(y, 0)
            dist.send(y + 1, dst=0, tag=3)
        works = [dist.isend(y + x.detach(), other, group=group), dist.irecv(z, group_src=other, group=group)]
        w = x.exp()
        for work in works:
            work.wait()
        return w * z + y, source

    check(program, rank)


@programs
def DDP_6_batches_of_sends_and_receives(rank):
    group = dist.new_group([0, 1])

    def program(x):
        y, z, u = torch.empty(4), torch.empty(4), x.detach() + 3
        ops = [
            dist.P2POp(dist.isend, x.detach() + 1, 1 - rank, group),
            dist.P2POp(dist.irecv, y, 1 - rank, group),
            dist.P2POp(dist.irecv, z, group=group, tag=1, group_peer=1 - rank),
            dist.P2POp(dist.isend, x.detach() * 2, 1 - rank, group, tag=1),
        ]
        works = dist.batch_isend_irecv(ops)
        alone = dist.batch_isend_irecv([dist.P2POp((dist.irecv, dist.isend)[rank], u, 1 - rank)])
        alone[0].wait()
        w = x.exp()
        for work in works:
            work.wait()
        return w * z + y * u, len(works)

    check(program, rank)


@programs
def DDP_6_parts_of_different_sizes(rank):
    def program(x):
        moved = torch.empty(2 + 2 * rank)
        dist.all_to_all_single(moved, x.detach(), [1 + rank] * 2, [1, 2])
        return moved + 1

    for backend in BACKENDS:
        x = values(rank, 3)
        made = minidynamo.compile(program, backend=backend, fullgraph=True)(x)
        assert torch.equal(made, program(x))


@programs
def DDP_6_collectives_of_objects_end_the_graph(rank):
    def program(x):
        y = x * 2
        found = [None, None]
        dist.all_gather_object(found, {"rank": dist.get_rank()})
        names = ["a" if rank == 0 else None]
        dist.broadcast_object_list(names, src=0)
        return y + found[1]["rank"], names

    f = minidynamo.compile(program, backend="aot_eager")
    made, names = f(values(rank))
    assert torch.equal(made, values(rank) * 2 + 1) and names == ["a"]
    assert [found.code for found in minidynamo.explain(f).break_reasons] == ["MD207"] * 2


@programs
def DDP_6_asynchronous_collectives_wait_where_the_program_does(rank):
    def program(x):
        y = x.detach() * 3
        work = dist.all_reduce(y, async_op=True)
        z = x.sin()
        done = work.wait()
        return y + z, done

    def returned(x):
        y = x.detach() * 3
        return y, dist.all_reduce(y, async_op=True)

    check(program, rank)
    y, work = minidynamo.compile(returned, backend="aot_eager", fullgraph=True)(values(rank))
    work.wait()
    assert torch.equal(y, 3 * (values(0) + values(1)))


@programs
def DDP_6_functional_collectives_and_their_gradients(rank):
    def program(x):
        a = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        b = functional.all_gather_tensor(x.exp(), 0, dist.group.WORLD)
        c = functional.reduce_scatter_tensor(b * 3, "sum", 0, dist.group.WORLD)
        d = functional.all_to_all_single(x + c, None, None, dist.group.WORLD)
        return a.sin() + c * d

    check(program, rank)


@programs
def DDP_6_groups_and_meshes(rank):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    pair = dist.new_group([0, 1])

    def program(x, group):
        y = x * group.size() + group.rank() + dist.get_rank(group) + dist.get_world_size()
        if dist.get_backend() == "gloo" and mesh.ndim == 2 and mesh.mesh_dim_names == ("dp", "tp"):
            y = y + mesh.get_local_rank("dp") + mesh.size(1) + mesh.shape[0] + mesh["dp"].size()
        z = y.detach().clone()
        dist.all_reduce(z, group=mesh.get_group("dp"))
        dist.all_reduce(z, group=group)
        return y * z

    check(program, rank, pair)


@programs
def DDP_6_collectives_of_unused_results_stay_in_their_order(rank):
    def program(x):
        dist.all_reduce(x + 1)
        dist.barrier()
        dist.all_reduce(x + 1)
        return x * 2

    backend = EagerAndRecordGraphs()
    minidynamo.compile(program, backend=backend, fullgraph=True)(values(rank))
    (graph,) = backend.graphs
    assert [node.target.__name__ for node in graph.graph.nodes if is_collective(node)] == [
        "all_reduce",
        "barrier",
        "all_reduce",
    ]


@programs
def DDP_6_an_error_after_a_collective_is_not_answered_by_a_second_run(rank):
    seen = []

    def program(x, y):
        seen.append(1)
        dist.all_reduce(x)
        return torch.linalg.cholesky(y)

    f = minidynamo.compile(program, backend="aot_eager")
    f(values(rank), torch.eye(2))
    x = torch.ones(4)
    with pytest.raises(torch.linalg.LinAlgError):
        f(x, -torch.eye(2))
    assert x.tolist() == [2] * 4


@programs
def DDP_8_ranks_that_capture_different_collectives_raise(rank):
    def program(x):
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        else:
            dist.broadcast(x, src=1)
        return x + 1

    for options in ({"fullgraph": True}, {}):
        with pytest.raises(Unsupported, match=r"(?s)MD701.*Rank 0: all_reduce\(.*Rank 1: broadcast\("):
            minidynamo.compile(program, backend="aot_eager", **options)(values(rank))
    dist.barrier()  # no collective has started


test_on_two_ranks = programs.test()
