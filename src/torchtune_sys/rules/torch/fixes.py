"""What rules say to install: another build of torch, a driver, a package, each as a command for the environment one trains with."""

from __future__ import annotations

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.knowledge.install_torch import INDEX
from torchtune_sys.model.actions import Install, Needs
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.version import version
from torchtune_sys.rules.torch.common import installed

AS_IT_WAS = ("--force-reinstall", "--no-deps")


def pip(s: Snapshot, verb: str, *words: str, elsewhere: bool = False) -> str:
    """Return a command of pip, quoted for a shell, that reaches the judged interpreter whichever ``pip`` is first on PATH.

    Environments that uv made hold no pip (https://docs.astral.sh/uv/pip/environments/); a Python that its system manages takes
    packages only with --break-system-packages (PEP 668), which is how a torch that stands there came in. Where root judges a
    user's environment, it is that user who runs it. ``elsewhere``: an environment that is still to be made.
    """
    from shlex import join  # for a finding alone

    python = s.python
    if elsewhere or isinstance(python, Missing) or isinstance(python.executable, Missing):
        return join(["pip", verb, *words])
    managed = ["--break-system-packages"] if python.externally_managed is True else []
    user = ["sudo", "-u", python.judged_as] if python.judged_as else []
    words = (verb, *managed, *words)
    if python.has_pip is False:
        return join([*user, "uv", "pip", *words, "--python", python.executable])
    return join([*user, python.executable, "-m", "pip", *words])


def quoted(name: str) -> str:
    """Return a path or a version of the host's as a sentence of ours names it: what is more than one plain word stands in a shell's quotes, and cannot
    pass for the sentence's own words or a command of it."""
    from shlex import quote

    return quote(name)


OF_TORCH = pattern(
    "(?:nvidia-(?:cublas|cuda-(?:cupti|nvrtc|runtime)|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl|nvjitlink|nvshmem|nvtx)(?:-cu[0-9]{2})?"
    "|numpy|pytorch-triton(?:-rocm|-xpu)?|triton|typing-extensions)"
    "(?:(?:[<>=!~]=?|===)[0-9A-Za-z.*+!]{1,60},?){0,8}",
)
"""Requirements of packages that torch's own wheels ask for. Whoever made a recording also says what torch asks for in it: an index gives anybody's package
to whoever asks for its name, and runs what is in it."""


def pip_install(s: Snapshot, *wanted: str, as_it_was: bool = False, behind: str = "") -> tuple[Install, ...]:
    """Return the command for requirements that the host tells; none where one is no requirement, or of no package that torch comes with.

    ``as_it_was``: puts the files of what is installed back, and leaves what it requires.
    """
    if not wanted or not all(OF_TORCH.fullmatch(each) for each in wanted):
        return ()
    return (Install(text=pip(s, "install", *(AS_IT_WAS if as_it_was else ()), *wanted) + behind),)


def lacking_wheel(s: Snapshot, release: releases.Release | None) -> str:
    """Return why pip finds no wheel of this release for the interpreter; empty where it does, or where the interpreter is not known."""
    if release is None or isinstance(s.python, Missing) or isinstance(s.python.version, Missing):
        return ""
    numbers = version(s.python.version)
    if len(numbers) < 2 or not release.abis:
        return ""
    abi = f"cp{numbers[0]}{numbers[1]}" + ("t" if s.python.free_threaded is True else "")
    offered = {name.removesuffix("m") for name in release.abis}
    return "" if abi in offered else f"torch {release.torch} has no wheel for Python {numbers[0]}.{numbers[1]}"


def build_for(s: Snapshot, release: releases.Release, variant: str, driver: str = "") -> Install:
    """Return how to get an official build (``cu128``) in the place of the installed torch, and what it needs: another Python, or that driver."""
    there = {} if isinstance(s.python, Missing) or isinstance(s.python.distributions, Missing) else installed(s)
    names = [f"torch=={release.torch}+{variant}"]
    if "torchvision" in there and release.torchvision:
        names.append(
            f"torchvision=={release.torchvision}+{variant}" if natural(release.torchvision[0]) is not None else "torchvision"
        )
    if "torchaudio" in there and version(release.torchaudio)[:2] == version(release.torch)[:2]:  # later ones are for any torch
        names.append(f"torchaudio=={release.torchaudio}+{variant}")
    upgrade = ["--upgrade"] if "torchvision" in names else []  # else pip keeps the one of another index
    lacking = lacking_wheel(s, release)
    return Install(
        text=(f"with a driver of {driver} or later: " if driver else "")
        + (f"in an environment with a Python of {' '.join(release.abis)}: " if lacking else "")
        + pip(s, "install", *upgrade, *names, "--index-url", f"{INDEX}{variant}", elsewhere=bool(lacking)),
        torch=f"{release.torch}+{variant}",
        other_python=bool(lacking),
        driver=driver,
    )


def newer_driver(floor: str) -> Install:
    return Install(text=f"install an NVIDIA driver of {floor} or later, and reboot", driver=floor, needs=Needs.REBOOT)


CUDA_BUILD = Install(
    text="reinstall torch as a CUDA build that the driver supports (nvidia-smi shows the highest CUDA version): "
    "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu<version>"
)
