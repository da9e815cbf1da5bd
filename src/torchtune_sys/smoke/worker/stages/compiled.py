"""torch.compile: it works here, it does compile, and what it compiles is right."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import platform
import shutil
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import QUICK, THOROUGH, RankContext, Skipped, StageFailed
from torchtune_sys.smoke.worker.functions.guards import guards_hold
from torchtune_sys.smoke.worker.functions.seldom_optimizers import compiled_steps_agree
from torchtune_sys.smoke.worker.functions.sequences import jagged_are_padded, scores_are_changed
from torchtune_sys.smoke.worker.models import (
    KEPT_BY_DROPOUT,
    TOKENS,
    WIDTH,
    Batch,
    DropoutDraw,
    FunctionBlend,
    InputMark,
    SmallTransformer,
    loss_of,
    seeded,
    sentences,
)
from torchtune_sys.smoke.worker.stages.kept_code import OWN_FOLDER, default_cache, kept_code_is_whole

_INDUCTOR_CACHE, _TRITON_CACHE = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_WISHED_CACHE = os.environ.get(_INDUCTOR_CACHE)
"""What the user set: torch writes its default there itself (torch/_inductor/runtime/cache_dir_utils.py)."""
_EMPTY_FILE_S = 12.0
_IN_USE = "in-use"
_AWAY_COMPILED = 2.0**-14
"""How far the loss, and each gradient as a share of its largest element, may be from eager. Both round float32 (2**-24) in sums
of some hundred terms, in another order: 2**-19 seen. The smallest fault to catch is the approximation of an activation function
in place of the function (GELU by tanh): 2.6e-4, four times as much."""


def compiled_agrees(here: RankContext) -> None:
    """Check that a compiled model gives the same loss and gradients as an uncompiled one, also for other input sizes."""
    _compiler_fits(here)
    kept_code_is_whole(_WISHED_CACHE)
    _compiler_is_quick()
    # TF32, which NVIDIA's images allow (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE), rounds by up to the tolerance. No stage comes after this one.
    torch.set_float32_matmul_precision("highest")
    trials = list(_trials(here))
    with fresh_caches(here) as folder, _instructions_by_their_flags():
        away = [share for number, trial in enumerate(trials) for share in _trained(here, trial, folder if number == 0 else "")]
        here.measure("away from eager", max(away), "")
        _other_sizes_agree(here)
        guards_hold(here)
        scores_are_changed(here)
        jagged_are_padded(here)
        compiled_steps_agree(here)


class _Trial:
    """A model, its data, and what it gives uncompiled: that is asked before anything is compiled, which may touch what eager takes, too."""

    def __init__(self, here: RankContext, model: torch.nn.Module, batch: Callable[[int], Batch]) -> None:
        self.model, self.batch = model.to(here.device), batch
        self.running = {name: held.clone() for name, held in self.model.named_buffers()}
        self.called = self.model
        self.eager = _loss_and_gradients(here, self, self.model, 0)


def _trials(here: RankContext) -> Iterator[_Trial]:
    """One layer for each word, after what compilers write themselves: a product before it would cut that, each way, into one piece of code more, for which the compiler takes 2 s. The
    transformer's 11 are left to who asks for much, and to GPUs, whose compiler has other faults; it takes 5 to 8 s there (H100, torch 2.11)."""
    seeded(6)
    running = [] if here.level == QUICK else [torch.nn.BatchNorm1d(TOKENS), DropoutDraw()]  # a piece of code more
    layers = torch.nn.Sequential(
        InputMark(),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.GELU(),
        *running,
        FunctionBlend(),
        torch.nn.Linear(WIDTH, TOKENS),
    )
    yield _Trial(here, layers, _words_in_places)
    if here.kind == "cuda" or here.level == THOROUGH:
        yield _Trial(here, SmallTransformer(depth=1), functools.partial(sentences, 16))


def _words_in_places(turn: int) -> Batch:
    words, answers = sentences(16, turn)
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(8))[words], answers


def _trained(here: RankContext, trial: _Trial, folder: str) -> List[float]:
    """Compare two turns with eager, a step between them; return how far they were from it. ``folder``: where the first compilation is to leave its
    code, "" for a later one."""
    started, before = time.perf_counter(), _compiled_files(folder) if folder else []
    while True:
        try:
            trial.called = _compiled(trial.model)
            compiled = _loss_and_gradients(here, trial, trial.called, 0)
            break
        except Exception as error:
            if _tries_instructions_after_all():
                continue
            if "no compiled frames" in str(error):  # torch 2.13; before, it ran uncompiled without a word
                _has_compiled([])
            if folder:
                _compiler_is_there(error)
                _compiler_writes(folder, error)
            raise
    if folder:
        here.measure("cold compilation", time.perf_counter() - started, "s")
        _has_compiled([name for name in _compiled_files(folder) if name not in before])  # to try the compiler leaves files, too
    torch.optim.SGD(trial.model.parameters(), lr=0.1).step()  # what was compiled must see it
    eager_again, again = (_loss_and_gradients(here, trial, called, 1) for called in (trial.model, trial.called))
    _draws_anew(compiled[1], again[1])
    shares = [*_away(trial.eager, compiled), *_away(eager_again, again)]
    for name, share in shares:
        if not share <= _AWAY_COMPILED:
            kind = "running figure" if name in trial.running else "gradient of"
            what = "loss" if name == "loss" else "%s %s, as a share of its largest element," % (kind, name)
            seen = "the %s is off by %.3g, where rounding explains %.3g" % (what, share, _AWAY_COMPILED)
            raise StageFailed("compiled-differs", seen)
    return [share for _, share in shares]


def _draws_anew(first: Dict[str, torch.Tensor], second: Dict[str, torch.Tensor]) -> None:
    """Check that about half of what a compiled dropout gets is left, and another half at the next call: its numbers come from a generator of the compiler's own. A share of 2**12 draws
    has a standard deviation of 0.008."""
    for name in (one for one in first if one.endswith(KEPT_BY_DROPOUT)):
        kept = [each[name].cpu() == 2.0 for each in (first, second)]
        shares = [float(each.double().mean()) for each in kept]
        if torch.equal(*kept) or any(abs(share - 0.5) > 0.06 for share in shares):
            how = (
                "drops the same elements at each call"
                if torch.equal(*kept)
                else "keeps %.3f and %.3f of its elements, where a half is right" % (*shares,)
            )
            raise StageFailed("compiled-differs", "a compiled dropout (p 0.5) %s" % how)


def _other_sizes_agree(here: RankContext) -> None:
    """Check other sizes than the first: the last batch is shorter, and sentences differ; what was compiled for one size is not to be taken for another. At last other
    weights lie in the place of the first ones, as averaged weights do. What a model writes into its input is compared, too. A model of one piece of code,
    which is made for any size at once where torch can be told so: that for one size alone takes two seconds more, and ``guards_hold`` asks without a compiler whether it is kept to its size."""
    seeded(7)
    norm = torch.nn.BatchNorm1d(TOKENS)
    model = torch.nn.Sequential(InputMark(), norm, torch.nn.Dropout(0.5), torch.nn.LayerNorm(WIDTH), torch.nn.GELU()).to(
        here.device
    )
    norm.running_mean.fill_(0.25)
    inputs = torch.randn(16, TOKENS, WIDTH, device=here.device)
    called = _compiled(model)
    getattr(called, "eval", model.eval)()  # figures of a batch are those of its size
    if any(one.training for one in model.modules()):
        raise StageFailed("compiled-differs", "eval() of a compiled model leaves the model itself training")
    with torch.no_grad():
        for size, put in ((16, False), (10, False), (5, False), (5, True)):
            for one in model.parameters() if put else ():
                one.data = one.data * 0.5
            left, given = inputs[:size].clone(), inputs[:size].clone()
            # since torch 2.1; mark_dynamic raises where the compiler keeps to one size, and in 2.0 always
            getattr(torch._dynamo, "maybe_mark_dynamic", lambda *_: None)(given, 0)
            off = float((model(left) - called(given)).abs().max())
            if not off <= _AWAY_COMPILED:
                what = "once other weights lie in place of the first (param.data)" if put else "for one of %d" % size
                seen = "what was compiled for a batch of 16 is off by %.3g %s" % (off, what)
                raise StageFailed("compiled-differs", seen)
            if not torch.equal(left, given):
                raise StageFailed("compiled-differs", "what a compiled model writes into its input is not there")


def _compiler_is_there(error: Exception) -> None:
    """Triton starts what CC names, whatever it is called: where that is not there, Python's error names a file and no compiler."""
    for name in ("CC", "CXX"):
        named = os.environ.get(name, "").split(" ")[0]
        if named and repr(named) in str(error) and shutil.which(named) is None:
            seen, remedy = (
                "%s names %s, which is not there, or no program",
                "set %s to a compiler, or unset it and install gcc and g++",
            )
            raise StageFailed("build-tool-missing", seen % (name, named), remedy % name) from error


def _compiler_writes(folder: str, error: Exception) -> None:
    """One that ends well and leaves nothing (a wrapper that lost what it wraps) breaks torch in words that do not name it."""
    compiler, made = os.environ.get("CXX") or "g++", os.path.join(folder, "trial.so")
    words = [compiler, "-shared", "-fPIC", "-x", "c++", os.devnull, "-o", made]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=True)
        if not os.path.exists(made):
            raise StageFailed("compiler-broken", "%s ends with status 0, but has written nothing" % compiler) from error


def _compiler_is_quick() -> None:
    """Compile an empty file, which takes a tenth of a second: a wrapper that asks a licence or a network first makes training start late, and
    looks like a hang."""
    began = time.monotonic()
    _empty_file_compiles([])  # where there is no compiler, the stage says so later
    seconds = time.monotonic() - began
    if seconds > _EMPTY_FILE_S:
        seen = "%s takes %.0f s for an empty file, and torch.compile calls it for each piece of code" % (_compiler(), seconds)
        remedy = "check what runs before the compiler (CXX, PATH: a wrapper, a network file system)"
        raise StageFailed("compiler-slow", seen, remedy)


def _compiler() -> str:
    return os.environ.get("CXX") or "c++"


def _empty_file_compiles(flags: List[str]) -> bool:
    words = [_compiler(), *flags, "-x", "c++", "-c", os.devnull, "-o", os.devnull]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.call(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_EMPTY_FILE_S * 4) == 0
    return False


def _compiler_fits(here: RankContext) -> None:
    if here.kind == "cuda" and torch.version.cuda is not None and torch.cuda.get_device_capability(here.device)[0] < 7:
        raise Skipped("Triton needs a GPU of compute capability 7.0 or higher")
    if not hasattr(torch, "compile"):
        raise Skipped("torch %s lacks torch.compile" % torch.__version__)


def _compiled(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return torch.compile(model, fullgraph=True)
    except RuntimeError as error:
        if any(words in str(error) for words in ("not supported on Python", "not yet supported for torch.compile")):  # 2.0
            raise Skipped("torch %s: %s" % (torch.__version__, error)) from None
        raise


_Outcome = Tuple[float, Dict[str, torch.Tensor]]
"""The loss, and by their names the gradients of parameters and what buffers (BatchNorm's running figures) hold after the pass."""


def _away(eager: _Outcome, compiled: _Outcome) -> Iterator[Tuple[str, float]]:
    """How far each gradient is from eager, as a share of its largest element, and the loss."""
    for name, wanted in eager[1].items():
        if name.endswith(KEPT_BY_DROPOUT):  # by other generators
            continue
        yield name, float((compiled[1][name] - wanted).abs().max()) / float(wanted.abs().max())
    yield "loss", abs(compiled[0] - eager[0])


def _loss_and_gradients(here: RankContext, trial: _Trial, called: torch.nn.Module, turn: int) -> _Outcome:
    trial.model.zero_grad(set_to_none=True)
    for name, held in trial.model.named_buffers():
        held.copy_(trial.running[name])
    loss = loss_of(called, trial.batch(turn), here.device)
    loss.backward()
    found = {name: parameter.grad.detach().clone() for name, parameter in trial.model.named_parameters()}
    return loss.item(), {**found, **{name: held.to(torch.float64, copy=True) for name, held in trial.model.named_buffers()}}


@contextlib.contextmanager
def fresh_caches(here: RankContext) -> Iterator[str]:
    """Empty folders for the compilers, where theirs would be: what was compiled before would hide that it cannot be now."""
    wished = _WISHED_CACHE
    before = {name: os.environ.get(name) for name in (_INDUCTOR_CACHE, _TRITON_CACHE)}
    if not wished:
        _default_cache_is_writable()
    folder = _fresh_folder(wished or here.scratch)
    if _headers_go_to(folder) and wished and here.kind == "cpu":
        _default_cache_is_writable()
    os.environ[_INDUCTOR_CACHE] = folder
    os.environ[_TRITON_CACHE] = os.path.join(folder, "triton")
    try:
        yield folder
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


_checks_of_torch: List[Any] = []
"""What tries a compiler on vector instructions, while another check is in its place."""


@contextlib.contextmanager
def _instructions_by_their_flags() -> Iterator[None]:
    """torch tries the compiler on a program for each set of vector instructions that this CPU has (torch/_inductor/cpu_vec_isa.py): five seconds on a Xeon with AMX, and two with the
    first set alone. Here it is tried on an empty file with the flags of each: the model is compiled by them next."""
    with contextlib.suppress(Exception):  # not a public part of torch: without it the compiler takes longer, no more
        from torch._inductor.cpu_vec_isa import VecISA

        if platform.machine() == "x86_64":
            _checks_of_torch.append(VecISA.check_build)
            VecISA.check_build = lambda one, _code: _empty_file_compiles(one.build_arch_flags().split())
    try:
        yield
    finally:
        _tries_instructions_after_all()


def _tries_instructions_after_all() -> bool:
    """Let torch try its own programs with the instructions again: an assembler may lack some that its compiler has. Return whether it had been kept from that."""
    if not _checks_of_torch:
        return False
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.VecISA.check_build = _checks_of_torch.pop()
    for one in cpu_vec_isa.supported_vec_isa_list:
        vars(one).clear()
        for kept in (value for kind in type(one).mro() for value in vars(kind).values()):
            getattr(kept, "cache_clear", bool)()
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    torch._dynamo.reset()
    return True


def _headers_go_to(folder: str) -> bool:
    """torch 2.8 and newer precompiles C++ headers, 150 MB of them, to its default cache whatever its variables say, and looks where that is as this module is
    imported. Here they go to the fresh folder, which is removed, unless the user has some: with them compiling takes ten seconds less. Return whether it does so."""
    kept = os.path.join(default_cache(), "precompiled_headers")
    before = tempfile.tempdir
    if not os.path.isdir(kept):
        tempfile.tempdir = folder
    try:
        from torch._inductor import codecache, config

        return hasattr(codecache, "_HEADER_DIR") and bool(getattr(config, "cpp_cache_precompile_headers", False))
    except Exception:  # the compiler says so itself
        return False
    finally:
        tempfile.tempdir = before


def _fresh_folder(place: str) -> str:
    try:
        os.makedirs(place, exist_ok=True)
        _killed_ones_go(place)
        folder = tempfile.mkdtemp(prefix=OWN_FOLDER, dir=place)
        fcntl.flock(
            os.open(os.path.join(folder, _IN_USE), os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX
        )  # until the process ends
        return folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StageFailed(
            "compile-cache-not-writable", "torch.compile cannot write below %s: %s" % (place, error.strerror)
        ) from error


def _killed_ones_go(place: str) -> None:
    """Remove the folders of smoke tests that were killed while they compiled: nobody holds their lock."""
    for name in os.listdir(place):
        lock = os.path.join(place, name, _IN_USE)
        with contextlib.suppress(OSError):
            if name.startswith(OWN_FOLDER) and os.lstat(lock).st_uid == os.geteuid():
                held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(os.path.join(place, name), ignore_errors=True)
                finally:
                    os.close(held)


def _default_cache_is_writable() -> None:
    """Where training would compile to. Asking for it fails for a user without a name, as training would (getpass.getuser)."""
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    except ImportError:
        return
    folder = default_cache_dir()
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StageFailed("compile-cache-not-writable", "torch.compile would write below %s, which this user may not" % folder)


def _compiled_files(folder: str) -> List[str]:
    kinds = (".so", ".cubin", ".hsaco")
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(kinds)]


def _has_compiled(files: List[str]) -> None:
    """By the machine code it left, not by its own counters: switched off, or after an error it was told to bear, it runs eagerly."""
    if len(files) < 2:
        raise StageFailed(
            "compile-does-nothing",
            "torch.compile left %d compiled file(s) where forward and backward take two: the model ran uncompiled" % len(files),
            "look for TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE and torch._dynamo.config.suppress_errors",
        )
