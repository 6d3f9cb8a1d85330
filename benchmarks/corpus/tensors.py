"""Programs about torch's functions: creation, indexing, shapes, reductions, random numbers, dtypes, modes, operators.

Each program keeps the style of its authors, and none was chosen because a compiler captures it.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.coverage_case import Corpus, leaf, matrix

programs = Corpus()


def images():
    return torch.randn(2, 3, 8, 8)


def tokens():
    return torch.randint(0, 10, (2, 5))


@programs(matrix)
def standardize(x):
    return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + 1e-5)


@programs(matrix)
def softmax_by_hand(x):
    e = torch.exp(x - x.max(dim=1, keepdim=True).values)
    return e / e.sum(dim=1, keepdim=True)


@programs(matrix)
def log_sum_exp(x):
    return torch.logsumexp(x, dim=-1), x.log_softmax(-1), F.softplus(x)


@programs(matrix)
def masked_fill_with_infinity(x):
    mask = torch.triu(torch.ones(x.size(0), x.size(1), dtype=torch.bool), diagonal=1)
    return x.masked_fill(mask, float("-inf")).softmax(-1)


@programs(matrix)
def where_and_clamp(x):
    return torch.where(x > 0, x, 0.1 * x), x.clamp(-0.5, 0.5), torch.minimum(x, -x)


@programs(matrix)
def boolean_mask_by_multiplication(x):
    keep = (x > 0).to(x.dtype)
    return (x * keep).sum() / keep.sum().clamp(min=1)


@programs(matrix)
def index_with_tensors(x):
    rows = torch.tensor([0, 2])
    cols = torch.arange(2)
    return x[rows], x[:, cols], x[rows, cols], x[rows[:, None], cols]


@programs(matrix)
def assign_to_slices(x):
    y = x.clone()
    y[0] = 0
    y[:, 1] = y[:, 2]
    y[1:, ::2] += 1
    y[..., -1] *= 2
    y[y > 1] = 1
    return y


@programs(matrix)
def gather_and_scatter(x):
    index = x.argmax(dim=1, keepdim=True)
    onehot = torch.zeros_like(x).scatter_(1, index, 1.0)
    return x.gather(1, index), onehot, x.scatter_add(0, index.expand(3, 4) % 3, x)


@programs(matrix)
def top_k(x):
    values, indices = x.topk(2, dim=-1)
    result = torch.topk(x, k=1)
    return values, indices, result.values, result.indices


@programs(matrix)
def sort_and_rank(x):
    s = torch.sort(x, descending=True)
    return s.values, s.indices, x.argsort(dim=0), x.median(dim=1).values, x.kthvalue(2).values


@programs(matrix)
def named_results(x):
    m = x.max(dim=0)
    return m.values, m.indices, m[0], x.min(1)[1], x.cummax(0).values


@programs(matrix)
def shapes(x):
    b, d = x.size()
    return x.view(d, b), x.reshape(-1), x.t(), x.unsqueeze(1).squeeze(), x.permute(1, 0), x.transpose(-1, -2), x.T


@programs(images)
def flatten_and_unflatten(x):
    return x.flatten(1), x.flatten(2).unflatten(2, (8, 8)), x.movedim(1, -1), x.contiguous().view(x.size(0), -1)


@programs(matrix)
def join_and_split(x):
    a, b = x.chunk(2, dim=1)
    c, d = x.split([1, 2], dim=0)
    return torch.cat([a, b], 1), torch.stack([a, b]), c, d, torch.hstack((a, b)), x.tensor_split(2, 1), x.unbind(0)


@programs(matrix)
def repeat_and_expand(x):
    return x.repeat(2, 1), x[:, None].expand(-1, 2, -1), x.repeat_interleave(2, dim=0), x.tile(1, 2), x.expand_as(x)


@programs(matrix)
def matrix_products(x):
    return x @ x.T, torch.matmul(x, x.t()), x.mm(x.t()), torch.einsum("ij,kj->ik", x, x), torch.outer(x[0], x[1])


@programs(lambda: torch.randn(2, 3, 4))
def batched_products(x):
    return (
        torch.bmm(x, x.transpose(1, 2)),
        torch.einsum("bij,bkj->bik", x, x),
        torch.baddbmm(torch.zeros(2, 3, 3), x, x.mT),
    )


@programs()
def creation(x):
    n = x.shape[0]
    return (
        torch.zeros(n, 2),
        torch.ones_like(x),
        torch.full((2,), 3.0),
        torch.arange(0, 1, 0.25),
        torch.linspace(0, 1, n),
        torch.eye(n),
        x.new_zeros(2),
        x.new_tensor([1.0]),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(3.5),
        torch.empty(0),
        x.new_full((1,), 2),
    )


@programs()
def tensor_of_python_values(x):
    sizes = [x.shape[0], 2]
    return torch.tensor(sizes), torch.as_tensor([1.0, 2.0]), torch.tensor([x.shape[0] / 2, 1]), torch.asarray([1])


@programs()
def legacy_constructors(x):
    return torch.FloatTensor([1.0, 2.0]), torch.LongTensor([1, 2]), torch.Tensor([1.0]), torch.Tensor(2, 3).shape


@programs()
def dtype_conversions(x):
    return x.half().float(), x.to(torch.float64), x.int(), x.bool(), x.type(torch.int64), x.double(), x.to(x.dtype)


@programs()
def dtype_questions(x):
    info = torch.finfo(x.dtype)
    return (
        x.clamp(min=info.min, max=info.max),
        info.eps,
        torch.iinfo(torch.int32).max,
        x.dtype == torch.float32,
        x.dtype.is_floating_point,
        x.is_complex(),
        torch.promote_types(torch.int32, torch.float16),
        torch.result_type(x, 1),
    )


@programs()
def device_questions(x):
    device = x.device
    y = torch.zeros(2, device=device)
    return y, device.type == "cpu", x.is_cuda, torch.device("cpu") == device, str(device), x.to("cpu"), x.cpu()


@programs()
def properties(x):
    return x.ndim, x.numel(), x.shape, x.stride(), x.requires_grad, x.is_leaf, x.itemsize, x.nbytes, x.layout, len(x)


@programs(leaf)
def detach_and_no_grad(x):
    with torch.no_grad():
        target = x * 2
    return (x - target).pow(2).mean(), x.detach().requires_grad, target.requires_grad


@programs(leaf)
def straight_through(x):
    hard = (x > 0).float()
    return hard + x - x.detach()


@programs(leaf)
def enable_grad_inside(x):
    with torch.no_grad(), torch.enable_grad():
        y = x * 2
    with torch.set_grad_enabled(False):
        z = x * 3
    return y, z, torch.is_grad_enabled()


@torch.no_grad()
def frozen(x):
    return x * 2


@programs(leaf)
def no_grad_decorator(x):
    return frozen(x) + x


@programs()
def inference_mode(x):
    with torch.inference_mode():
        y = x + 1
    return y.sum()


@programs(matrix)
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y, y.dtype


@programs()
def random_numbers(x):
    return (
        torch.rand(3),
        torch.randn_like(x),
        torch.randint(0, 5, (2,)),
        torch.randperm(4),
        x + torch.rand_like(x),
        torch.bernoulli(torch.full((3,), 0.5)),
        torch.normal(0.0, 1.0, (2,)),
        torch.empty(3).uniform_(),
    )


@programs()
def seeded_random_numbers(x):
    torch.manual_seed(3)
    return x + torch.rand(4)


@programs(matrix)
def multinomial_sampling(x):
    return torch.multinomial(x.softmax(-1), 2, replacement=True)


@programs(leaf)
def dropout_functional(x):
    return F.dropout(x, 0.5, training=True), F.dropout(x, 0.5, False)


@programs(matrix)
def losses(x):
    target = torch.tensor([0, 1, 2])
    return (
        F.cross_entropy(x, target),
        F.mse_loss(x, torch.zeros_like(x)),
        F.nll_loss(x.log_softmax(1), target),
        F.binary_cross_entropy_with_logits(x, (x > 0).float()),
        F.smooth_l1_loss(x, x + 1, beta=0.5),
        F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
        F.cosine_similarity(x, x + 1),
        F.cross_entropy(x, target, label_smoothing=0.1, ignore_index=1),
    )


@programs(images)
def convolution_and_pooling(x):
    w = torch.ones(4, 3, 3, 3)
    y = F.conv2d(x, w, padding=1)
    return (
        F.max_pool2d(y, 2),
        F.avg_pool2d(y, 2, stride=1),
        F.adaptive_avg_pool2d(y, 1),
        F.interpolate(y, scale_factor=2, mode="nearest"),
    )


@programs(images)
def padding_and_unfold(x):
    return F.pad(x, (1, 1, 2, 0)), F.unfold(x, 3), F.pad(x, [1, 1], mode="reflect"), x.unfold(3, 2, 2)


@programs(matrix)
def normalizations(x):
    return F.layer_norm(x, (4,)), F.normalize(x, dim=-1), F.group_norm(x, 2), F.batch_norm(x, None, None, training=True)


@programs(lambda: torch.randn(1, 2, 5, 8))
def attention(x):
    return (
        F.scaled_dot_product_attention(x, x, x, is_causal=True),
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(5, 5).tril().bool()),
    )


@programs(tokens)
def embedding_and_one_hot(ids):
    table = torch.ones(10, 4)
    return F.embedding(ids, table), F.one_hot(ids, 10), table[ids], ids.ne(0).sum(-1)


@programs(tokens)
def shift_tokens(ids):
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 1
    return shifted.masked_fill_(shifted == 3, 0)


@programs(tokens)
def position_ids_from_mask(ids):
    mask = (ids != 0).long()
    return (mask.cumsum(-1) - 1).clamp(min=0) * mask


@programs(matrix)
def reductions(x):
    return (
        x.sum(),
        x.mean(0),
        x.prod(1),
        x.var(unbiased=False),
        x.norm(),
        x.amax(-1),
        x.all(),
        x.any(0),
        torch.std_mean(x),
    )


@programs(matrix)
def comparisons(x):
    return x > 0, x.eq(0), (x == x).all(), torch.allclose(x, x + 1), torch.isnan(x).any(), x.isfinite(), x.sign()


@programs(matrix)
def branch_on_metadata(x):
    if x.is_contiguous() and x.dtype in (torch.float32, torch.float16) and not x.requires_grad:
        return x * 2
    return x


@programs(matrix)
def in_place_chain(x):
    y = x.clone().mul_(2).add_(1).clamp_(-1, 1)
    y.zero_()
    y.fill_(3).sub_(x)
    return y


@programs(matrix)
def change_the_argument(x):
    x.add_(1)
    x[0].zero_()
    return x.sum()


@programs(matrix)
def out_arguments(x):
    result = torch.empty_like(x)
    torch.add(x, 1, out=result)
    torch.mul(result, 2, out=result)
    return result


@programs(matrix)
def copy_into(x):
    buffer = torch.zeros(5, 4)
    buffer[:3].copy_(x)
    buffer[3:].copy_(x[:2] * 2)
    return buffer


@programs(matrix)
def views_share_memory(x):
    y = x.clone()
    first = y[0]
    first.mul_(10)
    flat = y.view(-1)
    flat[1] = 0
    return y, first


@programs()
def complex_tensors(x):
    z = torch.complex(x, x * 2)
    return z.abs(), z.real, torch.view_as_real(z), torch.polar(x.abs(), x), (z * z.conj()).imag, torch.fft.fft(x).abs()


@programs(lambda: torch.randn(1, 6, 2, 8))
def rotary_embedding(q):
    freqs = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(6), freqs)
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    a, b = q[..., ::2], q[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


@programs(lambda: torch.randn(5, 8))
def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


@programs()
def sinusoidal_positions(x):
    position = torch.arange(10).unsqueeze(1)
    div = torch.exp(torch.arange(0, 8, 2) * (-math.log(10000.0) / 8))
    pe = torch.zeros(10, 8)
    pe[:, 0::2] = torch.sin(position * div)
    pe[:, 1::2] = torch.cos(position * div)
    return pe


@programs(matrix)
def pairwise_distances(x):
    return torch.cdist(x, x), (x[:, None] - x[None]).pow(2).sum(-1), F.pairwise_distance(x, x + 1)


@programs(matrix)
def linear_algebra(x):
    a = x @ x.T + torch.eye(3)
    return (
        torch.linalg.norm(x),
        torch.linalg.inv(a),
        torch.linalg.solve(a, x),
        torch.linalg.cholesky(a),
        a.det(),
        a.trace(),
    )


@programs(matrix)
def size_arithmetic(x):
    size = x.shape[:-1] + (2, 2)
    return x.view(size), torch.Size([1, 2]).numel(), x.shape == (3, 4), tuple(x.shape), x.shape[-1] * 2, [*x.shape]


@programs(lambda: torch.randn(6, 4), lambda: torch.randn(8, 4))
def sizes_that_change(x):
    n = x.size(0)
    half = n // 2
    return x[:half] + x[half:], torch.arange(n), x.view(half, -1)


@programs(matrix)
def operators_between_types(x):
    return 1 - x, 2 / (x.abs() + 1), 2**x, x // 1, x % 2, -x, +x, abs(x), ~(x > 0), (x > 0) & (x < 1), 5 > x, x**2


@programs()
def scalars_of_tensors(x):
    s = x.sum()
    return s * 2, x * s, torch.maximum(s, torch.tensor(0.0)), x.mean() > 0


@programs()
def bit_operations(x):
    i = torch.arange(4)
    return i << 1, i & 2, i | 1, i ^ 3, i.bitwise_not(), torch.bitwise_and(i, 1)


@programs(matrix)
def cumulative(x):
    return x.cumsum(0), x.cumprod(1), torch.diff(x), x.roll(1, 0), x.flip(1), torch.diag(x[0]), x.tril(), x.rot90()


@programs(matrix)
def bucket_and_search(x):
    edges = torch.linspace(-1, 1, 5)
    return (
        torch.bucketize(x, edges),
        torch.searchsorted(edges, x),
        torch.histc(x, 4),
        torch.bincount(torch.tensor([1, 1])),
    )


@programs(matrix)
def meshgrid_and_grid_sample(x):
    ys, xs = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    grid = torch.stack([xs, ys], -1).float()[None] / 2 - 1
    return F.grid_sample(x[None, None], grid, align_corners=True), torch.cartesian_prod(xs[0], ys[:, 0])


@programs()
def cross_and_dot(x):
    a, b = x[:3], x[1:]
    return torch.cross(a, b, dim=0), torch.dot(a, b), torch.kron(a, b), a.inner(b), torch.addcmul(a, a, b, value=0.5)


@programs()
def lerp_and_ema(x):
    average = torch.zeros_like(x)
    for _ in range(3):
        average.lerp_(x, 0.1)
        average.mul_(0.9).add_(x, alpha=0.1)
    return average


@programs(matrix)
def data_attribute(x):
    return x.data + 1, x.data.shape


@programs(leaf)
def requires_grad_of_a_result(x):
    y = x.detach().clone().requires_grad_()
    return y * 2


@programs(leaf)
def read_the_gradient(x):
    if x.grad is not None:
        return x.grad * 2
    return x


@programs()
def checks(x):
    torch._check(x.shape[0] == 4)
    torch._check(x.dim() == 1, lambda: "a vector is expected")
    return x + 1


@programs()
def assertion_in_the_graph(x):
    torch._assert(x.shape[0] == 4, "four are expected")
    return x + 1


@programs()
def default_dtype(x):
    return torch.zeros(2).dtype == torch.get_default_dtype(), x + 1


@programs(matrix)
def tensor_methods_as_functions(x):
    return Tensor.add(x, 1), Tensor.sum(x, 0), torch.Tensor.relu(x), Tensor.view(x, -1)


@programs(matrix)
def keyword_arguments(x):
    return torch.sum(input=x, dim=1), x.mean(dim=(0, 1), keepdim=True), torch.add(x, x, alpha=2), x.sum(axis=0)


@programs(lambda: [torch.randn(n, 4) for n in (2, 3, 1)])
def pad_sequences(xs):
    longest = max(x.shape[0] for x in xs)
    out = xs[0].new_zeros(len(xs), longest, 4)
    for i, x in enumerate(xs):
        out[i, : x.shape[0]] = x
    return out, torch.nn.utils.rnn.pad_sequence(xs, batch_first=True)


@programs(lambda: [torch.randn(4) for _ in range(3)])
def foreach(xs):
    torch._foreach_mul_(xs, 2)
    norms = torch._foreach_norm(xs)
    return torch.stack(norms), torch._foreach_add(xs, 1)


@programs(matrix)
def tensor_in_conditions_of_shape(x):
    return x.T if x.shape[0] < x.shape[1] else x


@programs(matrix)
def vector_norms(x):
    return x.norm(dim=1), x.norm(p=1), torch.linalg.vector_norm(x, dim=0), x.renorm(2, 0, 1.0), torch.norm(x, "fro")


@programs(matrix)
def broadcast(x):
    a, b = torch.broadcast_tensors(x[:, :1], x[:1])
    return a + b, torch.broadcast_to(x[0], (2, 4)), torch.broadcast_shapes((3, 1), (1, 4))


@programs(matrix)
def nan_handling(x):
    y = x / torch.where(x > 0, x, 0.0)
    return torch.nan_to_num(y), torch.nansum(x), y.isnan(), torch.isinf(y)


@programs(matrix)
def strided_views(x):
    return (
        x.as_strided((2, 2), (1, 2)),
        x.diagonal(),
        x.narrow(1, 1, 2),
        x.select(0, 1),
        x.index_select(1, torch.tensor([0])),
    )


@programs(matrix)
def index_functions(x):
    i = torch.tensor([0, 2])
    return x.index_add(0, i, torch.ones(2, 4)), x.index_fill(0, i, 0.0), x.index_put((i,), torch.zeros(4)), x.take(i)


@programs(matrix)
def quantiles(x):
    return x.quantile(0.5), torch.quantile(x, torch.tensor([0.1, 0.9]), dim=1), x.nanmedian(), x.mode(0).values


@programs()
def tensor_equality_of_ids(x):
    xs = [x, x + 1]
    return any(t is x for t in xs), xs[0] is x, id(xs[1]) == id(x), x + 1


@programs(matrix)
def sum_of_generator_of_rows(x):
    return sum(row.norm() for row in x), max(row.shape[0] for row in x)


@programs(matrix)
def backward_and_grad(x):
    w = torch.ones(4, requires_grad=True)
    return (x * w).sum()


@programs(leaf)
def autograd_grad_inside(x):
    y = (x**2).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g
