"""What few trainings call of numbers, matrices, chance and data, in rows as in seldom_called.py."""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, Tuple

import torch
from torch import distributions, nn
from torch.nn import functional
from torch.optim import swa_utils
from torch.utils import checkpoint, data

from torchtune_sys.smoke.worker.functions.inputs import distinct

Known = Tuple[str, Callable[..., Any], Any]
"""Name, what is done, and what is right."""


def counted(*shape: int) -> torch.Tensor:
    """Return 0, 1, 2 … in that shape."""
    return torch.arange(float(math.prod(shape))).view(shape)


def numbers_of_few_bits() -> Iterator[Known]:
    given = torch.tensor([-1.0, -0.2, 0.0, 0.26, 0.7, 9.0])
    yield from (
        ("quantize_per_tensor", lambda: torch.quantize_per_tensor(given, 0.5, 3, torch.quint8).int_repr(), [1, 3, 3, 4, 4, 21]),
        ("quantize_per_tensor, back", lambda: torch.quantize_per_tensor(given, 0.5, 0, torch.qint8).dequantize(), [-1, 0, 0, 0.5, 0.5, 9]),
        ("quantize_per_channel", lambda: torch.quantize_per_channel(given.view(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.qint8).int_repr(), [-2, 0, 0, 2, 4, 37]),
    )  # fmt: skip
    held = given.clone().requires_grad_()
    yield from (
        ("fake_quantize_per_tensor_affine", lambda: torch.fake_quantize_per_tensor_affine(given, 0.5, 0, -2, 7), [-1, 0, 0, 0.5, 0.5, 3.5]),
        ("the gradient of fake_quantize_per_tensor_affine", lambda: torch.autograd.grad(torch.fake_quantize_per_tensor_affine(held, 0.5, 0, -2, 7).sum(), held)[0], [1, 1, 1, 1, 1, 0]),
        ("fake_quantize_per_channel_affine", lambda: torch.fake_quantize_per_channel_affine(given.view(2, 3), torch.tensor([0.5, 0.25]), torch.zeros(2, dtype=torch.int32), 0, -8, 7), [-1, 0, 0, 0.25, 0.75, 1.75]),
    )  # fmt: skip
    eights = (torch.arange(24 * 32) * 37 % 127 - 63).to(
        torch.int8
    )  # seven bits: without VNNI, x86 adds pairs of products in 16 bits and cuts what is beyond (oneDNN, "Nuances of int8 computations")
    yield ("a product of int8 (_int_mm)", lambda: torch._int_mm(eights.view(24, 32), eights.view(32, 24)), eights.view(24, 32).long() @ eights.view(32, 24).long())  # fmt: skip
    for kind in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        yield from (
            ("a product of %s" % str(kind)[6:], lambda kind=kind: torch.arange(6).view(2, 3).to(kind) @ torch.arange(6).view(3, 2).to(kind), [10, 13, 28, 40]),
            ("%s beyond its end" % str(kind)[6:], lambda kind=kind: torch.tensor([torch.iinfo(kind).max], dtype=kind) + 1 == torch.iinfo(kind).min, 1),
        )  # fmt: skip
    yield from (
        ("bits moved and masked", lambda: ((torch.arange(4) << 3) | 5) & 13, [5, 13, 5, 13]),
        ("float16 to int8 and back", lambda: torch.tensor([-3.7, 3.7, 127.0]).half().to(torch.int8).bfloat16(), [-3, 3, 127]),
    )  # fmt: skip


def sparse_and_nested() -> Iterator[Known]:
    whole = torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, 0], [0, 0, 0, 0], [0, 4, 5, 0]])
    other = counted(4, 2)
    for name in ("to_sparse_coo", "to_sparse_csr", "to_sparse_csc"):
        yield from (
            ("Tensor.%s, back" % name, lambda name=name: getattr(whole, name)().to_dense(), whole),
            ("a product of Tensor.%s" % name, lambda name=name: getattr(whole, name)() @ other, whole @ other),
        )  # fmt: skip
    for name in ("to_sparse_bsr", "to_sparse_bsc"):
        yield ("Tensor.%s, back" % name, lambda name=name: getattr(whole, name)((2, 2)).to_dense(), whole)
    twice = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [2.0, 3.0, 4.0], (2, 2))
    yield from (
        ("a place that comes twice in a sparse tensor", lambda: twice.to_dense(), [0, 5, 4, 0]),
        ("Tensor.coalesce", lambda: [twice.coalesce().values(), twice.coalesce().indices()], [5, 4, 0, 1, 1, 0]),
        ("sparse.sum", lambda: torch.sparse.sum(twice, 0).to_dense(), [4, 5]),
        ("sparse.softmax", lambda: torch.sparse.softmax(whole.to_sparse_coo(), 1).to_dense().sum(1), [1, 1, 0, 1]),
        ("sparse.mm", lambda: torch.sparse.mm(whole.to_sparse_coo(), other), whole @ other),
        ("sparse.addmm", lambda: torch.sparse.addmm(other, whole.to_sparse_coo(), other, beta=2.0), whole @ other + 2 * other),
    )  # fmt: skip
    leaf = whole.to_sparse_coo().requires_grad_()
    yield ("the gradient of sparse.mm", lambda: torch.autograd.grad(torch.sparse.mm(leaf, other).sum(), leaf)[0].to_dense(), (whole != 0) * other.sum(1))  # fmt: skip
    parts = [counted(2, 3), counted(1, 3) + 6]
    yield from (
        ("nested_tensor, padded", lambda: torch.nested.nested_tensor(parts).to_padded_tensor(-1.0), [0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1]),
        ("nested_tensor through a layer", lambda: functional.linear(torch.nested.nested_tensor(parts), torch.ones(1, 3)).to_padded_tensor(-1.0), [3, 12, 21, -1]),
        ("segment_reduce", lambda: torch.segment_reduce(counted(6), "sum", lengths=torch.tensor([1, 3, 2])), [0, 6, 9]),
    )  # fmt: skip


def factors() -> Iterator[Known]:
    """Factors have no one sign, so they are put together again."""
    lin, square, tall = torch.linalg, distinct(4, 4, wide=1.0) + 2 * torch.eye(4), distinct(5, 3)
    for kind in (torch.float64, torch.float32):
        one, long, even = square.to(kind), tall.to(kind), (square + square.t()).to(kind)
        words = " of %s" % str(kind)[6:]
        yield from (
            ("linalg.qr" + words, lambda long=long: (lambda pair: pair[0] @ pair[1])(lin.qr(long)), tall),
            ("linalg.svd" + words, lambda long=long: (lambda each: each[0] * each[1] @ each[2])(lin.svd(long, full_matrices=False)), tall),
            ("linalg.svdvals" + words, lambda long=long: (lin.svdvals(long) ** 2).sum(), (tall**2).sum()),
            ("linalg.eigh" + words, lambda even=even: (lambda pair: pair[1] * pair[0] @ pair[1].t())(lin.eigh(even)), square + square.t()),
            ("linalg.eig" + words, lambda one=one: (lambda pair: (pair[1] * pair[0] @ lin.inv(pair[1])).real)(lin.eig(one)), square),
            ("linalg.eigvals" + words, lambda one=one: lin.eigvals(one).sum().real, square.trace()),
            ("linalg.lu" + words, lambda one=one: (lambda each: each[0] @ each[1] @ each[2])(lin.lu(one)), square),
            ("linalg.lu_solve" + words, lambda one=one: one @ lin.lu_solve(*lin.lu_factor(one), one.t().contiguous()), square.t()),
            ("linalg.lstsq" + words, lambda long=long: lin.lstsq(long, long @ long[:3, :2]).solution, tall[:3, :2]),
            ("linalg.ldl_solve" + words, lambda even=even: even @ lin.ldl_solve(*lin.ldl_factor(even), even), square + square.t()),
            ("linalg.tensorinv" + words, lambda one=one: lin.tensorinv(one.view(2, 2, 4)).reshape(4, 4) @ one, torch.eye(4)),
            ("linalg.cond" + words, lambda one=one: lin.cond(one) / (lin.svdvals(one)[0] / lin.svdvals(one)[-1]), 1.0),
            ("linalg.matrix_exp" + words, lambda one=one: lin.matrix_exp(one) @ lin.matrix_exp(-one), torch.eye(4)),
            ("linalg.cholesky" + words, lambda one=one: (lambda low: low @ low.t())(lin.cholesky(one @ one.t())), square @ square.t()),
        )  # fmt: skip
        wave = distinct(64).to(kind)
        window = torch.hann_window(16, dtype=kind)
        yield ("stft and istft" + words, lambda wave=wave, window=window: torch.istft(torch.stft(wave, 16, 4, window=window, return_complex=True), 16, 4, window=window, length=64), distinct(64))  # fmt: skip
    for name, right in (
        ("hann", [0, 0.75, 0.75]),
        ("hamming", [0.08, 0.77, 0.77]),
        ("blackman", [0, 0.63, 0.63]),
        ("bartlett", [0, 2 / 3, 2 / 3]),
    ):
        yield ("torch.%s_window" % name, lambda name=name: getattr(torch, name + "_window")(3), right)


def draws_by_odds() -> Iterator[Known]:
    odds = torch.tensor([0.0, 1.0, 0.0, 3.0])
    yield from (
        ("multinomial draws nothing of odds 0", lambda: torch.multinomial(odds, 4096, True).unique(), [1, 3]),
        ("multinomial by its odds", lambda: abs(float((torch.multinomial(odds, 4096, True) == 3).double().mean()) - 0.75) < 0.06, 1),
        ("multinomial without replacement", lambda: torch.multinomial(torch.ones(64), 64).sort()[0], list(range(64))),
        ("torch.randperm has each once", lambda: torch.randperm(1000).sort()[0], list(range(1000))),
        ("torch.bernoulli of 0 and 1", lambda: torch.bernoulli(torch.tensor([0.0, 1, 0, 1])), [0, 1, 0, 1]),
        ("torch.poisson of 0, torch.normal without spread", lambda: [torch.poisson(torch.zeros(2)), torch.normal(odds, 0.0)], [0, 0, 0, 1, 0, 3]),
    )  # fmt: skip
    for name, mean in (("cauchy_", None), ("geometric_", 4.0), ("log_normal_", None), ("exponential_", 1.0), ("random_", None)):
        args = (0.25,) if name == "geometric_" else ()
        yield ("Tensor.%s differs each time" % name, lambda name=name, args=args: int((lambda one: (one == getattr(torch.empty(64), name)(*args)).all())(getattr(torch.empty(64), name)(*args))), 0)  # fmt: skip
        if mean is not None:
            yield ("Tensor.%s, its mean" % name, lambda name=name, args=args, mean=mean: (abs(float(getattr(torch.empty(1 << 15), name)(*args).mean()) / mean - 1) < 0.15), 1)  # fmt: skip
    yield ("torch.random.fork_rng", _forked, [1, 1])


def _forked() -> Any:
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(3)
        torch.rand(9)
    return [torch.equal(first, torch.rand(3)), torch.initial_seed() == 5]


def averages_of_weights() -> Iterator[Known]:
    one, other = torch.tensor([2.0]), torch.tensor([8.0])
    for name, args, right in (("get_swa_avg_fn", (), 4.0), ("get_ema_avg_fn", (0.75,), 3.5)):
        yield ("swa_utils.%s" % name, lambda name=name, args=args: getattr(swa_utils, name)(*args)(one.clone(), other, 2), right)  # fmt: skip
        several = name.replace("avg", "multi_avg")

        def at_once(several: str = several, args: Any = args) -> Any:
            held = [one.clone(), one * 2]
            getattr(swa_utils, several)(*args)(held, [other, other * 2], 2)
            return held

        yield ("swa_utils.%s" % several, at_once, [right, 2 * right])

    def updated() -> Any:
        net = nn.Sequential(nn.BatchNorm1d(2)).train()
        swa_utils.update_bn([torch.tensor([[1.0, 2], [3, 2]]), torch.tensor([[5.0, 8], [7, 8]])], net)
        return [net[0].running_mean, net[0].running_var, net[0].momentum]

    yield ("swa_utils.update_bn", updated, [4, 5, 2, 0, 0.1])


def derivatives() -> Iterator[Known]:
    by: Any = torch.autograd.functional
    point, way = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    for name, right in (("vjp", [9, 60]), ("jvp", [9, 60])):
        yield ("autograd.functional.%s" % name, lambda name=name: getattr(by, name)(lambda one: one**3, point, way)[1], right)  # fmt: skip
    for name in ("hvp", "vhp"):
        yield ("autograd.functional.%s" % name, lambda name=name: getattr(by, name)(lambda one: (one**3).sum(), point, way)[1], [18, -60])  # fmt: skip
    yield from (
        ("autograd.gradcheck", lambda: torch.autograd.gradcheck(lambda one: one**3, point.double().requires_grad_()), 1),
        ("func.grad_and_value", lambda: torch.func.grad_and_value(lambda one: (one**2).sum())(point), [2, -4, 5]),
        ("func.stack_module_state", lambda: torch.func.stack_module_state([nn.BatchNorm1d(2) for _ in range(3)])[0]["weight"].detach(), [1] * 6),
        ("func.functionalize", lambda: torch.func.functionalize(lambda one: one.clone().add_(1))(point), [2, -1]),
        ("vmap with randomness", lambda: torch.func.vmap(lambda one: torch.rand(1), randomness="same")(point)[:, 0].diff(), 0),
    )  # fmt: skip

    def told_of_nan() -> float:
        held = torch.zeros(1, requires_grad=True)
        with torch.autograd.detect_anomaly(check_nan=True):
            try:
                (held.sqrt() * 0).sum().backward()
            except RuntimeError:
                return 1.0
        return 0.0

    yield ("detect_anomaly tells of a NaN", told_of_nan, 1)

    def by_parts() -> Any:
        held, layers = point.clone().requires_grad_(), nn.Sequential(*(nn.Tanh() for _ in range(4)))
        (slope,) = torch.autograd.grad(checkpoint.checkpoint_sequential(layers, 2, held, use_reentrant=False).sum(), held)
        return slope - torch.autograd.grad(layers(held).sum(), held)[0]

    yield from (
        ("checkpoint_sequential", by_parts, [0, 0]),
        ("enable_grad within no_grad", lambda: float(torch.no_grad()(torch.enable_grad()(lambda: point.clone().requires_grad_() * 2))().requires_grad), 1),
    )  # fmt: skip


def odds_of_values() -> Iterator[Known]:
    d, given = distributions, torch.tensor([0.5, 1.5])
    normal = d.Normal(torch.zeros(2), torch.ones(2))
    yield from (
        ("distributions.TransformedDistribution", lambda: d.TransformedDistribution(normal, [d.ExpTransform()]).log_prob(given), d.LogNormal(torch.zeros(2), torch.ones(2)).log_prob(given)),
        ("distributions.Independent", lambda: d.Independent(normal, 1).log_prob(given), normal.log_prob(given).sum()),
        ("distributions.MixtureSameFamily", lambda: d.MixtureSameFamily(d.Categorical(torch.ones(2)), normal).log_prob(given), d.Normal(0.0, 1.0).log_prob(given)),
        ("distributions.LowRankMultivariateNormal", lambda: d.LowRankMultivariateNormal(torch.zeros(2), torch.zeros(2, 1), torch.ones(2)).log_prob(given), normal.log_prob(given).sum()),
    )  # fmt: skip
    turns: Tuple[Any, ...] = (
        d.ExpTransform(),
        d.SigmoidTransform(),
        d.TanhTransform(),
        d.AffineTransform(1.0, 3.0),
        d.PowerTransform(torch.tensor(2.0)),
        d.SoftplusTransform(),
        d.StickBreakingTransform(),
        d.LowerCholeskyTransform(),
    )
    for one in turns:
        start = torch.tensor([[0.5, 0.25], [0.125, 0.75]]) if "Cholesky" in type(one).__name__ else given / 4
        start = start.tril() if start.dim() > 1 else start
        yield ("distributions.%s undone" % type(one).__name__, lambda one=one, start=start: one.inv(one(start)), start)
    for one, mean in (
        (d.Gamma(3.0, 2.0), 1.5),
        (d.Beta(2.0, 2.0), 0.5),
        (d.StudentT(9.0), 0.0),
        (d.Laplace(1.0, 1.0), 1.0),
        (d.Dirichlet(torch.ones(4)), 0.25),
        (d.Binomial(8, torch.tensor(0.25)), 2.0),
        (d.VonMises(0.0, 4.0), 0.0),
        (d.MultivariateNormal(torch.ones(2), torch.eye(2)), 1.0),
    ):
        yield ("distributions.%s, the mean of 8192 draws" % type(one).__name__, lambda one=one, mean=mean: abs(float(one.sample((8192,)).mean()) - mean) < 0.1, 1)  # fmt: skip


def items_of_data() -> Iterator[Known]:
    numbers = data.TensorDataset(torch.arange(6))
    yield from (
        ("utils.data.StackDataset", lambda: [one[0] for one in data.StackDataset(numbers, numbers)[4]], [4, 4]),
        ("utils.data.WeightedRandomSampler", lambda: sorted({*data.WeightedRandomSampler([0.0, 1.0, 0.0, 2.0], 256)}), [1, 3]),
        ("utils.data.WeightedRandomSampler without replacement", lambda: sorted(data.WeightedRandomSampler([1.0] * 9, 9, replacement=False)), list(range(9))),
        ("utils.data.default_convert", lambda: data.default_convert({"a": [torch.ones(1), 3]})["a"], [1, 3]),
        ("utils.data.random_split in shares", lambda: [len(one) for one in data.random_split(numbers, [0.5, 0.34, 0.16])], [4, 2, 0]),
        ("utils.data.DataLoader with a generator", lambda: [[*data.DataLoader(numbers, shuffle=True, generator=torch.Generator().manual_seed(7))][at][0] == one[0] for at, one in enumerate(data.DataLoader(numbers, shuffle=True, generator=torch.Generator().manual_seed(7)))], [1] * 6),
        ("utils.data.get_worker_info outside a worker", lambda: data.get_worker_info() is None, 1),
    )  # fmt: skip
