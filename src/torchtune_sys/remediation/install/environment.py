"""The commands that install torch into an environment: pip, uv, conda-forge, pixi."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.install import InstallCommand, InstallFile, InstallOptions, InstallStep, PythonEnvironment, Wheel
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.interpreter import Interpreter

CONDA = "pytorch issue 138506: the channel pytorch ended with 2.5.1; conda-forge's feedstock pytorch-cpu-feedstock"
_FIRST_WITH_NUMPY_2 = (2, 3)
"""Release notes of torch 2.3; earlier ones were compiled against NumPy 1, and cannot use NumPy 2."""


def _of_conda_forge(python: Interpreter) -> str:
    """Return what its solver has the last word on."""
    note = "conda-forge builds releases at its own pace, with GPU code of its own choice: its solver says whether it has this one"
    if python.version.endswith("t"):
        note += f"; this is Python {python.version.rstrip('t')}, whose free-threaded twin is another package"
    return f"https://conda-forge.org/packages/ ({note})"


def steps(wheel: Wheel, python: Interpreter, options: InstallOptions) -> Iterator[InstallStep]:
    make = {"pip": _pip, "uv": _uv, "conda": _conda, "pixi": _pixi}[options.tool]
    yield make(wheel, python, options.venv)


def _title(wheel: Wheel) -> str:
    where = "from PyPI" if not wheel.index else f"from {wheel.index}"
    return f"torch {wheel.local}, {where}"


_NOT_PINNED = "not pinned: the wheels' sums are those that the index tells over https"


def _why(wheel: Wheel) -> str:
    needs = f"driver {wheel.driver} or newer, " if wheel.driver else ""
    index = f"{wheel.not_pypi}; " if wheel.not_pypi else ""
    return f"{index}needs {needs}glibc {wheel.glibc}, {wheel.abi} on {wheel.machine}; an environment, because of PEP 668; {_NOT_PINNED}"


def specifiers(wheel: Wheel) -> tuple[str, ...]:
    """Return the version alone: the index decides on the build, and PyPI knows no local versions."""
    found = [f"torch=={wheel.torch}"]
    if wheel.torchvision:
        found.append(f"torchvision{wheel.torchvision}")
    if version(wheel.torch) < _FIRST_WITH_NUMPY_2:
        found.append(numpy(wheel))  # torchvision asks for any
    return tuple(found)


def numpy(wheel: Wheel) -> str:
    """Return the requirement on NumPy, for which torch's wheel does not ask, and without which sharded checkpoints fail (torch/distributed/checkpoint)."""
    return "numpy<2" if version(wheel.torch) < _FIRST_WITH_NUMPY_2 else "numpy>=1.26"


def _pip(wheel: Wheel, python: Interpreter, venv: str) -> InstallStep:
    return InstallStep(
        key="torch",
        title=_title(wheel),
        actions=(_environment(wheel, "pip", python.program, venv),),
        why=_why(wheel) + ("" if python.is_here else f"; {python.program} must be there (--tool uv fetches it)"),
        source=wheel.source,
    )


def _uv(wheel: Wheel, python: Interpreter, venv: str) -> InstallStep:
    return InstallStep(
        key="torch",
        title=_title(wheel),
        actions=(_environment(wheel, "uv", python.program if python.is_here else python.version, venv),),
        why=_why(wheel) + "; uv fetches the Python that it does not find",
        source=wheel.source,
    )


def _environment(wheel: Wheel, tool: str, program: str, venv: str) -> PythonEnvironment:
    return PythonEnvironment(
        venv=venv, program=program, tool=tool, specifiers=specifiers(wheel), local=wheel.local, index=wheel.index
    )


def cuda_below(wheel: Wheel) -> int:
    """Return the CUDA major version that the driver does not run any more (or the GPU: CUDA 13 begins with Turing).

    >>> cuda_below(Wheel(torch="2.14.1", build="cu126", index="", abi="cp312", machine="x86_64", torchvision="", driver="", glibc="",
    ...                  source=""))
    13
    """
    return int(wheel.build[2:-1]) + 1


def _conda(wheel: Wheel, python: Interpreter, venv: str) -> InstallStep:
    minor = ".".join(str(number) for number in version(wheel.torch)[:2])
    gpu = wheel.build != "cpu"
    specs = [f"python={python.version.rstrip('t')}", f"pytorch-{'gpu' if gpu else 'cpu'}={minor}"]
    specs += [f"cuda-version<{cuda_below(wheel)}"] if gpu else []
    return InstallStep(
        key="torch",
        title=f"torch {minor} from conda-forge",
        actions=(
            InstallCommand(
                words=("conda", "create", "--yes", "--prefix", venv, "--override-channels", "--channel", "conda-forge", *specs)
            ),
        ),
        why="conda-forge; NVIDIA's and PyTorch's own channels have no newer torch than 2.5.1"
        + ("; on a host without a GPU set CONDA_OVERRIDE_CUDA for the solver" if gpu else ""),
        source=CONDA,
        by_hand=_of_conda_forge(python),
    )


def _pixi(wheel: Wheel, python: Interpreter, venv: str) -> InstallStep:
    minor = ".".join(str(number) for number in version(wheel.torch)[:2])
    gpu = wheel.build != "cpu"
    platform = "linux-64" if wheel.machine == "x86_64" else "linux-aarch64"
    cuda = str(cuda_below(wheel) - 1) if gpu else ""
    lines = [
        "# Written by torchtune-sys generate install.",
        "[workspace]",
        'name = "training"',
        'channels = ["conda-forge"]',
        f'platforms = ["{platform}"]',
        *(["", "[system-requirements]", f'cuda = "{cuda}"'] if gpu else []),
        "",
        "[dependencies]",
        f'python = "{python.version.rstrip("t")}.*"',
        f'pytorch-{"gpu" if gpu else "cpu"} = "{minor}.*"',
        *([f'cuda-version = "<{cuda_below(wheel)}"'] if gpu else []),
    ]
    path = f"{venv}/pixi.toml"
    return InstallStep(
        key="torch",
        title=f"torch {minor} from conda-forge, by pixi",
        actions=(
            InstallFile(path=path, text="\n".join(lines) + "\n"),
            InstallCommand(words=("pixi", "install", "--manifest-path", path)),
        ),
        why="without system-requirements pixi takes the CPU build (pixi 0.71 and later write it as platforms = [{ …, cuda = … }])",
        source="https://pixi.prefix.dev/latest/python/pytorch",
        by_hand=_of_conda_forge(python),
    )
