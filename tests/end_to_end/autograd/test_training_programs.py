"""Values, gradients and effects of compiled training code equal eager's, on our autograd stage and in full."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import minidynamo
from tests.end_to_end.programs import rows_of

BACKENDS = ["aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


class Training:
    """Each function takes `compile_it`, runs a program, and returns tensors and further values."""

    def batch_norm_in_training_and_evaluation(compile_it):
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.ReLU(), nn.MaxPool2d(2))
        compiled, found = compile_it(model), []
        for turn in range(4):
            model.train(turn % 2 == 0)
            model.zero_grad()
            out = compiled(torch.randn(4, 2, 6, 6))
            out.pow(2).mean().backward()
            found += [out, *[p.grad.clone() for p in model.parameters()], *[b.clone() for b in model.buffers()]]
        return found

    def dropouts_draw_what_eager_draws(compile_it):
        def f(x):
            return F.dropout(F.dropout(x, 0.3) * 2, 0.5) + F.alpha_dropout(x, 0.2, True) + F.dropout2d(x, 0.5)

        x = leaf(4, 5, 3, 3)
        out = compile_it(f)(x)
        out.pow(2).sum().backward()
        return [out, x.grad, torch.rand(2)]

    def dropout_of_half_floats(compile_it):
        x = leaf(50, dtype=torch.bfloat16)
        out = compile_it(lambda x: F.dropout(x * 2, 0.3))(x)
        out.sum().backward()
        return [out, x.grad, torch.rand(2)]

    def sparse_gradients(compile_it):
        model = nn.Embedding(10, 4, sparse=True)
        out = compile_it(model)(torch.randint(10, (3, 5)))
        out.pow(2).sum().backward()
        return [out, model.weight.grad.is_sparse, model.weight.grad.to_dense()]

    def sparse_gradients_of_batches_of_all_sizes(compile_it):
        table = nn.Embedding(10, 4, sparse=True)
        score = compile_it(lambda a, b: (table(a) * table(b)).sum())
        results = []
        for size in (5, 3, 4, 6):
            score(torch.randint(10, (size,)), torch.randint(10, (size,))).backward()
            results += [table.weight.grad.is_sparse, table.weight.grad.to_dense()]
            table.weight.grad = None
        return results

    def cells_in_a_loop(compile_it):
        cell = nn.GRUCell(4, 5)

        def f(x, h):
            outs = []
            for t in range(x.shape[1]):
                h = cell(x[:, t], h)
                outs.append(h)
            return torch.stack(outs, 1)

        x, h = leaf(2, 3, 4), leaf(2, 5)
        out = compile_it(f)(x, h)
        out.pow(2).sum().backward()
        return [out, x.grad, h.grad, *[p.grad for p in cell.parameters()]]

    def losses(compile_it):
        def f(x, y, classes):
            loss = F.cross_entropy(x, classes, label_smoothing=0.1, ignore_index=2) + F.mse_loss(x, y) + F.l1_loss(x, y)
            loss = (
                loss + F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.huber_loss(x, y)
            )
            return (
                loss
                + F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean")
                + F.multi_margin_loss(x, classes)
            )

        x = leaf(4, 5)
        loss = compile_it(f)(x, torch.randn(4, 5), torch.tensor([0, 2, 4, 1]))
        loss.backward()
        return [loss, x.grad]

    def parts_without_gradient(compile_it):
        def f(x, y):
            with torch.no_grad():
                scale, w = (x * y).sum(), x * 2
            z = x * scale + w
            return z, (z * x.detach()).sum(), w, z.detach() * 2

        x, y = leaf(3), leaf(3)
        z, loss, w, cut = compile_it(f)(x, y)
        (z.sum() + loss).backward()
        return [z, loss, w, w.requires_grad, cut.requires_grad, x.grad, y.grad]

    def frozen_parameters(compile_it):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        compiled, found = compile_it(model), []
        for turn in range(4):
            model[0].weight.requires_grad_(turn >= 2)
            model[2].bias.requires_grad_(turn < 2)
            model.zero_grad()
            compiled(torch.randn(5, 3)).pow(2).sum().backward()
            found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        return found

    def optimizer_steps_between_calls(compile_it):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        compiled, optimizer, found = compile_it(model), torch.optim.AdamW(model.parameters(), lr=0.1), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = compiled(torch.randn(5, 3)).pow(2).sum()
            loss.backward()
            optimizer.step()
            found.append(loss)
        return [*found, *model.parameters()]

    def hooks_on_outputs_and_parameters(compile_it):
        model, seen = nn.Linear(3, 3), []
        model.weight.register_hook(lambda g: g * 2)
        model.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))

        def f(x):
            return model(x), x.sin()

        x = leaf(2, 3)
        a, b = compile_it(f)(x)
        a.register_hook(lambda g: seen.append(g.clone()) or g * 3)
        b.retain_grad()
        (a * b).sum().backward()
        return [x.grad, b.grad, model.weight.grad, *seen]

    def autocast_around_a_model(compile_it):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
        compiled, x = compile_it(model), torch.randn(4, 8)
        with torch.autocast("cpu", torch.bfloat16):
            half = compiled(x)
            loss = F.cross_entropy(half, torch.tensor([0, 1, 1, 0]))
        loss.backward()
        return [half, loss, compiled(x), *[p.grad for p in model.parameters()]]

    def hooks_change_the_dtype_of_what_is_saved(compile_it):
        def f(x):
            return (x.tanh() @ x).relu().sum(1)

        x, saved = leaf(3, 3), torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t)
        with pytest.MonkeyPatch.context() as patch:
            if compile_it is unchanged:  # eager's own operations cannot take different dtypes
                patch.setattr(saved, "pack_hook", lambda t: t)
            with saved:
                out = compile_it(f)(x)
        out.sum().backward()
        return [out, x.grad]

    def checkpoint_around_a_compiled_model(compile_it):
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())
        compiled, x = compile_it(model), leaf(2, 3)
        outs = [checkpoint(compiled, x, use_reentrant=False) for _ in range(2)]
        sum(outs).sum().backward()
        return [*outs, x.grad, model[0].weight.grad]

    def written_buffers_and_outputs(compile_it):
        def f(x, average):
            average.copy_(x.detach() * 0.1 + average * 0.9)
            return x * average, x + 1

        x, average = leaf(3), torch.zeros(3)
        compiled = compile_it(f)
        compiled(x, average)
        a, b = compiled(x, average)
        b.mul_(2)
        (a.sum() + b.sum()).backward()
        return [a, b, average, x.grad]

    def double_and_half_models(compile_it):
        found = []
        for dtype in (torch.float64, torch.bfloat16):
            model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)
            x = leaf(4, 8, dtype=dtype)
            out = compile_it(model)(x)
            F.cross_entropy(out, torch.tensor([0, 1, 2, 3])).backward()
            found += [out, x.grad, *[p.grad for p in model.parameters()]]
        return found


def unchanged(function):
    return function


def outcome(program, compile_it):
    torch.manual_seed(3)
    return program(compile_it)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", rows_of(Training), ids=lambda program: program.__name__)
def test_a_training_program_does_what_it_does_in_eager(program, backend):
    expected = outcome(program, unchanged)
    found = outcome(program, lambda function: minidynamo.compile(function, backend=backend))
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected):
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        assert got.requires_grad == wanted.requires_grad
        tolerance = 2e-2 if wanted.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(got.detach(), wanted.detach(), rtol=tolerance, atol=tolerance)
