"""Silent corruption: the same work again and again, where every repetition must give the same bits."""

from __future__ import annotations

import functools
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import nn

from torchtune_sys.smoke.worker.context import (
    DEFAULT,
    QUICK,
    THOROUGH,
    RankContext,
    StageFailed,
    deterministic,
    repeatable,
    same_bits,
    small_integers,
    with_threads,
)
from torchtune_sys.smoke.worker.gpu_health import GpuHealth
from torchtune_sys.smoke.worker.measures import exact_step, float_step
from torchtune_sys.smoke.worker.models import SmallConvNet, SmallTransformer, bars, loss_of, seeded, sentences

_SIDES = {"cpu": (127, 129), "cuda": (511, 513, 2047)}
"""No multiples of 32: the last tiles of a product take other code than the rest."""
_ODD_SIDES = (511, 513)
_UNLIKE_SIDES = {"cpu": (129, 67, 131), "cuda": (513, 259, 515)}
_PRODUCTS = {QUICK: 300, DEFAULT: 1500, THOROUGH: 6000}
"""At least so many in all. A fault of one product in 300 escapes 1500 with a probability of 0.7 %."""
_HEAVY_SIDES, _HEAVY_A_ROUND, _HEAVY_S = (2048, 4096, 8192), 6, 0.01
"""Products that fill a GPU, the largest that takes no longer: 8192 takes an H100 1.6 ms and 700 W, where the smaller ones left it at 308 W and its full clock."""
_ROOM_FOR_HEAVY = 4 << 30
_STEPS_REPEATED = {QUICK: 10, DEFAULT: 70, THOROUGH: 400}
"""Of training, each with several layers of a kind: from the default level on a fault of one in thirty calls of a function is met."""
_AT_LEAST_S = {QUICK: 1.0, DEFAULT: 5.0, THOROUGH: 60.0}
"""Of load on a GPU, whose faults come with heat; a CPU does its number of products."""
Work = Callable[[], torch.Tensor]


def repeated_work_repeats_its_bits(here: RankContext) -> None:
    """Check that products in all layouts, sums and copies of random data give the same bits each time under load."""
    _odd_sizes_are_right(here)
    wrong = exact_step(torch, here.device)
    if wrong:
        raise StageFailed("device-computes-wrong", wrong)
    _low_precision_is_right(here)
    health = GpuHealth(_uuid(here))
    try:
        with repeatable(here):
            off = _repeat(here, list(_pieces_of_work(here)), health) or _steps_repeat(here)
        told = health.judge()
    except RuntimeError as error:
        xids = [text for _, text in health.xids()]  # why CUDA gave up
        if not xids:
            raise
        raise StageFailed("", "%s; the driver logged %s" % (str(error).splitlines()[0], "; ".join(xids[:3]))) from error
    finally:
        health.close()
    if off:
        raise StageFailed("silent-data-corruption", "; ".join(filter(None, [off, told])))
    here.remark = "; ".join(filter(None, ["fingerprint of a step %s" % step_fingerprint(here), told]))


def _uuid(here: RankContext) -> str:
    """As NVML knows the GPU; "" where it is none of NVIDIA's, or torch is older than 2.5."""
    return str(getattr(torch.cuda.get_device_properties(here.device), "uuid", "")) if here.gpus and not torch.version.hip else ""


def step_fingerprint(here: RankContext) -> str:
    """Hosts of the same hardware and the same libraries have the same: what differs computes otherwise. One thread, as in the pre-flight."""
    with with_threads(1), repeatable(here):
        return float_step(torch, here.device)


def _layouts(left: torch.Tensor, right: torch.Tensor) -> Iterator[Tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the same two factors, each as it is and as the transpose of what is stored."""
    turned = left.t().contiguous().t(), right.t().contiguous().t()
    yield from (("NN", left, right), ("TN", turned[0], right), ("NT", left, turned[1]), ("TT", *turned))


def _odd_sizes_are_right(here: RankContext) -> None:
    """Whole numbers, whose sums are exact in float32 in whatever order: one right answer for every layout."""
    for side in _ODD_SIDES:
        left, right = small_integers((side, side), side), small_integers((side, side), side + 1)
        wanted = left.double() @ right.double()
        for layout, one, other in _layouts(left.to(here.device), right.to(here.device)):
            differing = same_bits(torch.mm(one, other), wanted)
            if differing:
                seen = "%d elements of a float32 product of %d x %d (layout %s) are wrong" % (differing, side, side, layout)
                raise StageFailed("gemm-wrong", seen)


def _low_precision_is_right(here: RankContext) -> None:
    """Check the same in other precisions, of sides that are all unlike. Sums of so many of -1, 0 and 1 stay below 256, which bfloat16 holds exactly, in partial sums, too."""
    rows, terms, columns = _UNLIKE_SIDES[here.kind]
    left, right = small_integers((rows, terms), 5, -1, 2), small_integers((terms, columns), 6, -1, 2)
    wanted = left.double() @ right.double()
    kinds = [torch.float64] + [torch.bfloat16] * here.has_bfloat16() + [torch.float16] * (here.kind == "cuda")
    for kind in kinds:
        for layout, one, other in _layouts(left.to(here.device, kind), right.to(here.device, kind)):
            for name, found in (
                ("product", torch.mm(one, other)),
                ("product in a batch", torch.bmm(one.expand(2, *one.shape), other.expand(2, *other.shape))[1]),
                ("product with a sum", torch.addmm(torch.ones(columns, device=here.device, dtype=kind), one, other) - 1),
            ):
                differing = same_bits(found, wanted)
                if differing:
                    words = (differing, str(kind)[6:], name, rows, terms, columns, layout)
                    raise StageFailed("gemm-wrong", "%d elements of a %s %s of %d x %d x %d (layout %s) are wrong" % words)


def _pieces_of_work(here: RankContext) -> Iterator[Tuple[str, Work]]:
    generator = torch.Generator().manual_seed(17)
    low = torch.bfloat16 if here.has_bfloat16() else torch.float16
    for side in _SIDES[here.kind]:
        left, right = (torch.randn(side, side, generator=generator).to(here.device) for _ in range(2))
        for dtype in (torch.float32, low):
            for layout, one, other in _layouts(left.to(dtype), right.to(dtype)):
                what = "%s products of %d x %d (layout %s)" % (str(dtype)[6:], side, side, layout)
                yield what, functools.partial(torch.mm, one, other)
        yield "sums in low precision", functools.partial(torch.sum, left.to(low))
        for number in range(2):
            yield "sums", functools.partial(torch.sum, left[number:])
            yield "copies", functools.partial(_copied, left)
            yield "clones", functools.partial(_cloned, left)
        for name, work in _functions_of(left):
            for _ in range(3):
                yield name, work
        if here.kind == "cuda":
            yield "copies to the host and back", functools.partial(_there_and_back, left)
    if here.kind == "cuda" and not here.shared and torch.cuda.mem_get_info(here.device)[0] >= _ROOM_FOR_HEAVY:
        yield from _heavy_products(here, low)


def _heavy_products(here: RankContext, dtype: torch.dtype) -> Iterator[Tuple[str, Work]]:
    """Yield none where the GPU has no units for such products, which would take it seconds."""
    found: List[Tuple[str, Work]] = []
    for side in _HEAVY_SIDES:
        factor = torch.randn(side, side, device=here.device, dtype=dtype)
        work = functools.partial(torch.mm, factor, factor)
        if here.seconds(work, _HEAVY_S, 1) > _HEAVY_S:
            break
        found = [("%s products of %d x %d" % (str(dtype)[6:], side, side), work)]
    yield from found * _HEAVY_A_ROUND


def _functions_of(values: torch.Tensor) -> Iterator[Tuple[str, Work]]:
    """Yield what stands between products, of few numbers: it is to be repeated often."""
    few = values[:24, :64].contiguous()
    shares, pictures, weight = few[0], few[:16].reshape(4, 4, 8, 8), values[24:28, :36].reshape(4, 4, 3, 3)
    yield "softmax", functools.partial(torch.softmax, few, 1)
    yield "layer_norm", functools.partial(torch.nn.functional.layer_norm, few, (64,), shares, shares)
    yield "gelu", functools.partial(torch.nn.functional.gelu, few)
    yield "exp", functools.partial(torch.exp, few)
    yield "sort", functools.partial(_sorted, few)
    yield "cumsum", functools.partial(torch.cumsum, few, 1)
    yield "convolutions", functools.partial(torch.nn.functional.conv2d, pictures, weight)
    yield "bmm", functools.partial(torch.bmm, few.view(6, 4, 64), few.view(6, 64, 4))
    yield "attention", functools.partial(torch.nn.functional.scaled_dot_product_attention, *(few.view(1, 1, 24, 64),) * 3)


def _sorted(values: torch.Tensor) -> torch.Tensor:
    return values.sort(1)[0]


def _copied(values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(values).copy_(values)


def _cloned(values: torch.Tensor) -> torch.Tensor:
    return values.clone()


def _there_and_back(values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu").to(values.device)


def _repeat(here: RankContext, pieces: List[Tuple[str, Work]], health: GpuHealth) -> str:
    """Return what gave other bits; "" if nothing did."""
    wanted = [_settled(what, work) for what, work in pieces]
    a_round = sum("products" in what for what, _ in pieces)
    rounds, least = -(-_PRODUCTS[here.level] // a_round), _AT_LEAST_S[here.level] if here.kind == "cuda" else 0.0
    off: Dict[str, int] = {}
    done, started = 0, time.monotonic()
    while done < rounds or time.monotonic() - started < least:
        for (what, _), agrees in zip(pieces, _agreements(here, pieces, wanted)):
            if not agrees:
                off[what] = off.get(what, 0) + 1
        done += 1
        health.look()
    here.measure("repeated products", done * a_round, "")
    here.measure("under load", time.monotonic() - started, "s")
    if not off:
        return ""
    what = max(off, key=lambda name: off[name])
    return "%d of %d repetitions gave other bits than the first, %d of them %s" % (
        sum(off.values()),
        done * len(pieces),
        off[what],
        what,
    )


class _RepeatedStep:
    """A step of training from the same weights each time, and all that it gives by name: outputs of layers, gradients from the loss backwards, weights."""

    def __init__(self, here: RankContext, model: nn.Module, batch: Tuple[torch.Tensor, torch.Tensor]) -> None:
        self.here, self.model, self.batch = here, model.to(here.device), batch
        self.parameters = list(self.model.named_parameters())
        self.weights = [value.detach().clone() for _, value in self.parameters]
        self.kinds = {
            "%s.%s" % (name, one): type(part).__name__
            for name, part in self.model.named_modules()
            for one, _ in part.named_parameters(recurse=False)
        }
        self.found: List[Tuple[str, torch.Tensor]] = []
        for name, part in self.model.named_modules():
            if not [*part.children()]:
                part.register_forward_hook(functools.partial(self._keep, "the output of %s (%s)" % (name, type(part).__name__)))

    def _keep(self, name: str, part: nn.Module, given: Any, output: torch.Tensor) -> None:
        self.found.append((name, output.detach()))

    def again(self) -> List[Tuple[str, torch.Tensor]]:
        with torch.no_grad():
            for (_, value), first in zip(self.parameters, self.weights):
                value.copy_(first)
                value.grad = None  # zero_grad is the stage optimizer's
        self.found = []
        optimizer = torch.optim.AdamW([value for _, value in self.parameters], lr=1e-2)
        loss = loss_of(self.model, self.batch, self.here.device)
        loss.backward()
        named = [(key, value) for key, value in self.parameters if value.grad is not None]
        slopes = [
            ("the gradient of %s (%s)" % (key, self.kinds.get(key, "the model")), value.grad) for key, value in reversed(named)
        ]
        optimizer.step()
        return [
            *self.found,
            ("the loss", loss.detach()),
            *slopes,
            *(("%s after the step of AdamW" % key, value.detach().clone()) for key, value in named),
        ]


def _steps_repeat(here: RankContext) -> str:
    """Return what a step of training gives otherwise than at first; "" if nothing. What is not the same each time is told before a training goes astray by it."""
    off: Dict[str, int] = {}
    for make, batches in ((SmallTransformer, sentences), (SmallConvNet, bars)):
        seeded(6)
        step = _RepeatedStep(here, make(), batches(8, 6))
        with deterministic(here):
            wanted = step.again()
            for _ in range(_STEPS_REPEATED[here.level]):
                first = _first_that_differs(step.again(), wanted)
                if first:
                    off[first] = off.get(first, 0) + 1
    if not off:
        return ""
    words = (sum(off.values()), 2 * _STEPS_REPEATED[here.level], ", ".join(sorted(off, key=lambda name: -off[name])[:3]))
    return "%d of %d repetitions of a step of training gave other bits than the first; what differed first: %s" % words


def _first_that_differs(found: List[Tuple[str, torch.Tensor]], wanted: List[Tuple[str, torch.Tensor]]) -> str:
    return next((name for (name, one), (_, other) in zip(found, wanted) if not torch.equal(one, other)), "")


def _agreements(here: RankContext, pieces: List[Tuple[str, Work]], wanted: List[torch.Tensor]) -> List[bool]:
    """Whether each piece of work gives its bits again. On a GPU all of a round is queued before anything is asked: one that waits for each answer stands
    idle between them, and stays cool."""
    if here.kind == "cpu":
        return [torch.equal(work(), right) for (_, work), right in zip(pieces, wanted)]
    return list(torch.stack([(work() == right).all() for (_, work), right in zip(pieces, wanted)]).tolist())


class RepeatedWork:
    """The same work once more, later on: a core that fails once it is hot, or now and then, passed the stage."""

    def __init__(self, here: RankContext) -> None:
        self._here, self._pieces = here, list(_pieces_of_work(here))
        self._off: Dict[str, int] = {}
        self._done = 0
        self._wanted: List[torch.Tensor] = []

    def again(self, rounds: int) -> str:
        """Return what gave other bits at one time than at another; "" for nothing."""
        with repeatable(self._here):
            try:
                self._wanted = self._wanted or [_settled(what, work) for what, work in self._pieces]
            except StageFailed as error:
                return error.seen
            for _ in range(rounds):
                for (what, _), agrees in zip(self._pieces, _agreements(self._here, self._pieces, self._wanted)):
                    self._off[what] = self._off.get(what, 0) + (not agrees)
                self._done += 1
        most = max(self._off, key=lambda name: self._off[name])
        words = (sum(self._off.values()), self._done * len(self._pieces), most)
        return "%d of %d repetitions of the same work gave other bits (most: %s)" % words if words[0] else ""


def ranks_that_are_off(told: List[Dict[str, Any]]) -> List[Tuple[str, str]]:
    """Return cause and words for each rank whose repeated work gave other bits."""
    words = "rank %d (%s) has computed otherwise than before: %s"
    return [("silent-data-corruption", words % (rank, own["place"], own["off"])) for rank, own in enumerate(told) if own["off"]]


def _settled(what: str, work: Work) -> torch.Tensor:
    """Return what two of three calls agree on. Raises StageFailed where none do."""
    found = [work() for _ in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        if torch.equal(found[one], found[other]):
            return found[one]
    raise StageFailed("silent-data-corruption", "%s: three repetitions gave three answers" % what)
