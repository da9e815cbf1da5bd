"""Answers that are written down: all of them can be read, and one that is another is told by its name. What a healthy place may do otherwise (a file system mounted without
locks, switches that add up in any order) is no wrong answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from smoke.faults.forked import said

TRIAL = """
import types
here = types.SimpleNamespace(level="%s")
names = [name for line in ANSWERS_OF_FUNCTIONS.split(";") for name in line.split()[4:]]
assert len(set(names)) > 1000 and len(trials()) > 600, len(set(names))
%s
try:
    answers_are_known(here)
except StageFailed as error:
    print(error.cause, error.seen)
else:
    print("all known")
"""
LOCKS = """
import errno, types
real = fcntl.flock
def refused(file, how):
    if not isinstance(file, int):
        raise OSError(number, os.strerror(number))
    real(file, how)
with tempfile.TemporaryDirectory() as folder:
    locks_hold(types.SimpleNamespace(remark=""), folder)
    fcntl.flock = refused
    for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO):
        here = types.SimpleNamespace(remark="")
        try:
            locks_hold(here, folder)
            print("cannot be locked" in here.remark)
        except StageFailed as failed:
            print(failed.cause)
"""
SUMS = """
import itertools, types
dist.barrier = lambda: None
keeps_nothing_of = lambda here, what, exchanged, count: [exchanged() for _ in range(3)]
unlike = lambda *_: []
for kind, error in (("cpu", 1e-7), ("cuda", 1e-7), ("cuda", 1e-3), ("cuda", float("nan"))):
    turns = itertools.count()
    dist.all_reduce = lambda held: held.mul_(1.5).add_(error * next(turns))
    here = types.SimpleNamespace(kind=kind, device=torch.device("cpu"), rank=0, world=2)
    print([cause for cause, _ in repeated_exchanges(here)])
"""
SPOILED = {
    "": "all known",
    "real = torch.nn.functional.celu; torch.nn.functional.celu = lambda one, alpha=1.0, inplace=False: real(one)": (
        "layer-wrong torch.nn.functional.celu of float32 is wrong"
    ),
    "real = torch.Tensor.erfinv; torch.Tensor.erfinv = lambda one: real(one) * (1.001 if one.dtype == torch.float32 else 1)": (
        "torch.Tensor.erfinv is wrong"
    ),
    "real = torch.sinc; torch.sinc = lambda one: real(one if one.is_contiguous() or one.dim() != 2 or one.shape != (6, 6) else one.t())": (
        "device-computes-wrong torch.sinc of float32, transposed is wrong"
    ),
    "real = torch.optim.Rprop.step; torch.optim.Rprop.step = lambda self, closure=None: (real(self, closure), real(self))[0]": (
        "optimizer-wrong optim.Rprop"
    ),
    "torch.optim.lr_scheduler.CyclicLR.scale_fn = property(lambda self: lambda turn: 1.0)": "schedule-wrong lr_scheduler.CyclicLR",
}
TABLES = """
channel.tell = lambda *what, **more: None
here = RankContext(level="%s", scratch=".", device="cpu", backend="gloo", expected={})
keys = torch.library.Library("aten", "IMPL")
def wrong_where(name, when):
    kernel = torch.library.get_kernel("aten::" + name, "CPU")
    def wrong(dispatched, *given, **more):
        found = kernel.call_boxed(dispatched, *given, **more)
        if when(given[0]):
            found[tuple(size - 1 for size in found.shape)] *= 1.25
        return found
    keys.impl(name, wrong, "CPU", with_keyset=True)
%s
try:
    %s
except StageFailed as error:
    print(error.cause, error.seen)
else:
    print("all right")
"""
LARGE = {
    "": "all right",
    "wrong_where('gelu', lambda one: one.numel() > 40000)": "layer-wrong 1 of 70020 elements of torch.nn.functional.gelu of 1167 times 60 float32",
    "wrong_where('gelu', lambda one: one.numel() > 9000 and one.dtype == torch.bfloat16)": "gelu of 667 times 60 bfloat16",
    "wrong_where('tanh', lambda one: one.is_contiguous(memory_format=torch.channels_last) and one.numel() > 9000)": "tanh of 167 times 60 float32, channels_last",
    "wrong_where('cumsum', lambda one: one.shape[-1] > 2000)": "torch.cumsum of float32",
    "wrong_where('silu_backward', lambda one: one.numel() > 9000)": "the gradient of torch.nn.functional.silu of 667 times 60 float32",
}


WIDE = {
    "": "all right",
    "wrong_where('exp', lambda one: one.dtype == torch.float32 and one.numel() == 17)": "1 of 17 results of exp of 17 numbers are wrong",
    "wrong_where('rsqrt', lambda one: one.numel() > 65536)": "rsqrt of float32 are wrong: number 70000, of",
    "real = torch.Tensor.sort; torch.Tensor.sort = lambda one, *a, **m: real(one, *a, **m) if one.numel() < 70000 else (one, one)": "results of sort of 70001 float32 are wrong",
    "real = torch.Tensor.index_add; torch.Tensor.index_add = lambda one, dim, to, given: real(one, dim, to[1:], given[1:])": (
        "results of index_add of 70001 float32 to 7 places are wrong"
    ),
}

EDGES = {
    "": "all right",
    "wrong_where('amax', lambda one: one.shape == (2, 1024))": "1 of 2 results of the largest of 1024 float32 along dimension 1 are wrong",
    "real = torch.addmm; torch.addmm = lambda one, *given, **more: real(one, *given, **more) + 0 * one": "addmm of float32 with beta=0",
    "real = torch.bmm; torch.bmm = lambda one, other: real(one, other) * ((torch.arange(len(one)) < 1) | (other.stride(0) != 0))[:, None, None]": (
        "162 of 210 results of bmm with one second factor for all"
    ),
    "real = torch.mm; torch.mm = lambda one, other, **more: real(one, other, **more) + (one.data_ptr() % 16 != 0)": (
        "gemm-wrong 323 of 323 results of a product of float32 that begins 1 numbers off"
    ),
}


def _rows(named: dict[str, object], dear: set[int]) -> list[object]:
    """The rows of a table, by their numbers; those of ``dear`` show what the others do, most of them in ten times as long."""
    return [
        pytest.param(key, id=str(number), marks=[pytest.mark.exhaustive] if number in dear else [])
        for number, key in enumerate(named)
    ]


@pytest.mark.parametrize("spoil", _rows({**WIDE}, {3, 4}))
def test_what_is_wrong_for_some_numbers_lengths_and_places_is_told(spoil: str) -> None:
    assert WIDE[spoil] in _said("default", spoil, TABLES.replace("    %s\nexcept", "    wide_ranges_are_right(here)\nexcept"))


@pytest.mark.parametrize("spoil", _rows({**EDGES}, set()))
def test_what_is_wrong_at_some_sizes_addresses_and_strides_is_told(spoil: str) -> None:
    assert EDGES[spoil] in _said("default", spoil, TABLES.replace("    %s\nexcept", "    edges_are_right(here)\nexcept"))


def test_modules_are_moved_also_where_torch_swaps_their_weights() -> None:
    """Weights that a graph holds cannot be swapped: "_apply(): Couldn't swap PReLU.weight"."""
    source = TABLES.replace("    %s\nexcept", "    table_is_right(here, functions_of_models(), 'layer-wrong')\nexcept")
    assert _said("default", "torch.__future__.set_swap_module_params_on_conversion(True)", source) == "all right"


UNGUARDED = """
import torch._dynamo
torch._dynamo.config.guard_nn_modules = {}
real = torch.compile
def compile(model, **more):
    keep = lambda guards: ["self" not in one.name for one in guards]
    return real(model, **more, options={{"guard_filter_fn": keep}})
torch.compile = compile
"""


@pytest.mark.parametrize("guarded", [False, True])
def test_attributes_of_compiled_modules_are_to_be_followed_where_torch_says_so(guarded: bool) -> None:
    """Up to 2.4 torch took them for constant (https://github.com/pytorch/pytorch/issues/124717)."""
    said = _said("default", UNGUARDED.format(guarded), TABLES.replace("    %s\nexcept", "    guards_hold(here)\nexcept"))
    assert said.startswith("compiled-differs a compiled model goes on with what its rate was" if guarded else "all right")


KEEPS_ITS_MODE = """
import functools
real = torch.compile
def compile(model, **more):
    called, first = real(model, **more), []
    @functools.wraps(called)
    def keeps(*given):
        first.append(model.training)
        mode, model.training = model.training, first[0]
        found = called(*given)
        model.training = mode
        return found
    return keeps
torch.compile = compile
"""


def test_a_compiled_model_that_keeps_the_mode_of_its_first_call_is_told() -> None:
    said = _said("default", KEEPS_ITS_MODE, TABLES.replace("    %s\nexcept", "    guards_hold(here)\nexcept"))
    assert said.startswith("compiled-differs a compiled model goes on with what its training was")


def test_a_checkpoint_that_a_full_disk_left_empty_is_no_error_of_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "read-by-0.pt").touch()
    read = f"_read_checkpoint({str(tmp_path / 'read-by-0.pt')!r})"
    assert _said("default", "", TABLES.replace("    %s\nexcept", f"    {read}\nexcept")) == "all right"


def test_what_is_written_beside_a_piece_is_told() -> None:
    real = "real = torch.Tensor.fill_; torch.Tensor.fill_ = lambda one, value: (real(one, value), torch.as_strided(one, (1,), (1,), one.storage_offset() + one.numel()).zero_())"
    said = _said("default", real, TABLES.replace("    %s\nexcept", "    pieces_arrive(here)\nexcept"))
    assert "memory-corrupts fill_ into 1 uint8 changes what is beside them" in said


@pytest.mark.parametrize("spoil", _rows({**LARGE}, {0, 1, 3, 4, 5}))
def test_what_is_wrong_in_large_sizes_only_is_told(spoil: str) -> None:
    assert LARGE[spoil] in _said("default", spoil, TABLES.replace("    %s\nexcept", "    _tables(here)\nexcept"))


PER_TENSOR = """
real = torch.nn.utils.clip_grad_norm_
def each_by_itself(held, limit, *given, **more):
    return sum((real([one], limit, *given, **more) ** 2 for one in held), torch.zeros(())) ** 0.5
torch.nn.utils.clip_grad_norm_ = each_by_itself
"""
ZEROED = """
real = torch.save
def zeroed(held, path):
    real(held, path)
    if not isinstance(path, str):  # in memory
        return
    with open(path, "rb+") as file:
        if file.seek(0, 2) > 1 << 18:
            file.seek(1 << 17)
            file.write(bytes(4096))
torch.save = zeroed
"""
THAWED = """
import functools
real = torch._utils._rebuild_parameter
torch._utils._rebuild_parameter = functools.wraps(real)(lambda data, requires_grad, hooks: real(data, True, hooks))
"""
UNSCALED = "_Scaled.get_extra_state = lambda self: {}"
MAIN_ALONE = """
import threading
real = torch.autograd.backward
torch.autograd.backward = lambda *given, **more: real(*given, **more) if threading.current_thread() is threading.main_thread() else None
"""
NEVER_OFF = """
real = new_scaler
def new_scaler(*given, **more):
    return real(*given)
"""
OTHERS = {
    "optimizers_follow_their_formulas(here)": ("", "all right"),
    "optimizers_follow_their_formulas(here) ": (PER_TENSOR, "clip-wrong clip_grad_norm_"),
    "_kinds_survive('kinds.pt')": ("", "all right"),
    "_kinds_survive('kinds.pt') ": (ZEROED, "checkpoint-damaged a tensor (large)"),
    "modules_resume('module.pt')": ("", "all right"),
    "modules_resume('module.pt') ": (THAWED, "loses which of the parameters that are saved by themselves train"),
    "modules_resume('module.pt')  ": (UNSCALED, "loses what it holds beside tensors (get_extra_state)"),
    "directories_tell('.')": ("", "all right"),
    "directories_tell('.') ": ("import os; names = os.listdir('.'); os.listdir = lambda place: names", "checkpoint-stale"),
    "autograd_keeps_its_promises(here)": (MAIN_ALONE, "the gradient of a backward pass in another thread"),
    "each_optimizer_skips_alone(here)": ("", "all right"),
    "each_optimizer_skips_alone(here) ": (NEVER_OFF, "with a scaler that is switched off, the loss"),
}


@pytest.mark.parametrize("work", _rows({**OTHERS}, {0, 1, 4, 7, 10}))
def test_what_was_passed_over_is_told(work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, words = OTHERS[work]
    monkeypatch.chdir(tmp_path)
    assert words in _said("default", spoil, TABLES.replace("    %s\nexcept", f"    {work}\nexcept"))


def _said(level: str, spoil: str, program: str = TRIAL) -> str:
    return said(program % (level, spoil)).strip().splitlines()[-1]


@pytest.mark.parametrize("spoil", _rows({**SPOILED}, {0, 3, 4, 5}))
def test_an_answer_that_is_another_is_told_by_its_name(spoil: str) -> None:
    assert SPOILED[spoil] in _said("default", spoil)


WHERE_TRIED = """
import itertools
here = RankContext(level="%s", scratch=".", device="cpu", backend="gloo", expected={})
instructions = lambda: "AVX2"
def lacking(turn):
    raise NotImplementedError("not implemented for 'Float'")
def failing(turn):
    raise RuntimeError("could not execute a primitive")
def refusing(here):
    raise RuntimeError("MKL FFT error: Intel oneMKL DFTI ERROR: Inconsistent configuration parameters")
def said(way):
    turns = itertools.count()
    def check(here):
        found = _or_nothing(way, next(turns))
        if found is not None:
            _agree("a way", found, torch.ones(1).double(), 0.001)
    here.doubt = None
    try:
        judged_where_tried(check, here)
    except Exception as error:
        return type(error).__name__
    return "doubt" if here.doubt else "right"
def wrong(here):
    raise StageFailed("layer-wrong", "always so")
def of_a_stage(*checks):
    return outcome(here, Stage("stress", lambda here: [judged_where_tried(check, here) if check is wrong else check(here) for check in checks]))["verdict"]
%s
ways = [lambda turn: torch.ones(1), lambda turn: torch.ones(1) * 2, lambda turn: torch.ones(1) + (turn == 0), lambda turn: torch.ones(1) * (2 + turn), lacking, failing]
def refused():
    here.doubt = None
    try:
        judged_where_tried(refusing, here)
    except Exception as error:
        return type(error).__name__
    return "doubt" if here.doubt else "right"
print(*map(said, ways), of_a_stage(wrong), of_a_stage(wrong, lambda here: int("none")), refused())
"""
ELSEWHERE = "right doubt StageFailed StageFailed right doubt unknown fail right"
JUDGED = {
    "RELEASES = {release_of_torch(): ''}": "right StageFailed StageFailed StageFailed right RuntimeError fail fail RuntimeError",
    "RELEASES = {}": ELSEWHERE,
    "RELEASES, INSTRUCTIONS = {release_of_torch(): ''}, {}": ELSEWHERE.replace("fail right", "fail doubt"),
    "RELEASES = {release_of_torch(): ''}; INSTRUCTIONS = {'AVX512': [release_of_torch()]}; instructions = lambda: 'AVX512'": "right StageFailed StageFailed StageFailed right RuntimeError fail fail RuntimeError",
    "RELEASES = {release_of_torch(): ''}; INSTRUCTIONS = {'AVX512': [(1, 0)]}; instructions = lambda: 'AVX512'": ELSEWHERE.replace(
        "fail right", "fail doubt"
    ),
    "RELEASES = {}; here.kind = 'cuda'": "right doubt StageFailed doubt right doubt unknown fail right",
}


@pytest.mark.parametrize("where", _rows({**JUDGED}, {2}))
def test_a_host_is_not_blamed_where_torch_was_not_tried(where: str) -> None:
    """Ways that agree, do not, do at a second look, are off by something else then, are not there, and a library that fails in its work; a stage with a doubt, and one that
    finds a fault after it."""
    assert _said("default", where, WHERE_TRIED) == JUDGED[where]


OF_NONE = "real = torch.nn.functional.silu; torch.nn.functional.silu = lambda one, **more: real(one if one.numel() else one.flatten(), **more)"
ONE_ROW = "table_is_right(here, (row for row in operators_of_numbers() if row.name == 'silu'), 'layer-wrong'); print(here.doubt)"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (OF_NONE, "layer-wrong torch.nn.functional.silu of no float32 gives (0,), not"),
        ("PASSED_SINCE.clear(); " + OF_NONE, "it may be torch's own answer there"),
    ],
)
def test_a_check_of_a_table_that_was_not_tried_with_a_release_is_a_doubt(spoil: str, words: str) -> None:
    assert words in said((TABLES.replace("    %s\nexcept", f"    {ONE_ROW}\nexcept")) % ("default", spoil))


def test_a_file_system_without_locks_is_a_remark_and_one_that_fails_a_fault() -> None:
    assert said(LOCKS).splitlines() == ["True", "True", "True", "filesystem-without-locks"]


def test_sums_on_gpus_may_be_rounded_otherwise_each_time() -> None:
    assert said(SUMS).splitlines() == ["['collective-wrong']", "[]", "['collective-wrong']", "['collective-wrong']"]
