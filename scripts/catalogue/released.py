"""Messages in released files: wheels (Python modules, and texts in shared libraries), shell scripts, help texts."""

from __future__ import annotations

import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from catalogue import python_calls

_SPEECH = re.compile(
    r"NCCL|[Gg]loo|c10d|[Tt]imeout|timed out|TCPStore|\bsocket|\branks?\b|CUDA (error|driver|init|runtime|kernel)|cuDNN (error|version|lib)|cuBLAS|driver|"
    r"shared memory|file descriptor|[Ww]atchdog|process group|ProcessGroup|collective|DataLoader|[Cc]onnection|hostname|HIP error|kernel image|peer|"
    r"NVML|out of memory|allocate memory|mmap|PytorchStream|[Cc]ommunicator|FlightRecorder|[Hh]eartbeat"
)
_NOISE = re.compile(
    r"^(_Z|/|\.|[a-z_]+::|aten::|Args:|static )|->|;\s*$|\(Tensor|return |template|std::|const |\bvoid\b|void \*|rank\(|PARDISO|ATen_|Accepted range|[Dd]efault(s| value)|``|^(Args|Example|Returns|Allgathers|Allreduces|Append|Gathers|Broadcasts)\b"
)
_TORCH_PYTHON = re.compile(
    r"^torch/(cuda|distributed|multiprocessing|utils/data|utils/cpp_extension\.py|utils/_cpp_extension|_inductor/(codecache|cpp_builder|exc|runtime|compile_worker|utils|cpu_vec_isa)|"
    r"__init__\.py|_utils\.py|serialization\.py|amp|nn/parallel|backends|hub\.py|numa|accelerator|_C/|storage\.py|utils/checkpoint\.py|mtia|xpu)"
)


def from_wheels(folder: Path) -> Iterator[tuple[str, str, str, str, str]]:
    for path in sorted(folder.glob("*.whl")):
        name, release = path.name.split("-")[:2]
        with zipfile.ZipFile(path) as wheel:
            if name == "torch":
                yield from _torch(wheel, release)
            elif name == "triton":
                yield from _python(wheel, "triton", release, re.compile(r"^triton/(runtime|backends|compiler|_utils|knobs)"))
            elif name == "nvidia_cuda_runtime_cu12":
                yield from _strings(wheel, "cuda", release, re.compile(r"libcudart\.so"), re.compile(r"."))
            elif name == "nvidia_ml_py":
                yield from _strings_of_nvml(wheel, release)


def _torch(wheel: zipfile.ZipFile, release: str) -> Iterator[tuple[str, str, str, str, str]]:
    yield from _python(wheel, "torch", release, _TORCH_PYTHON)
    libraries = re.compile(r"^torch/lib/(libtorch_cuda|libtorch_cpu|libtorch_python|libc10|libc10_cuda|libshm)(_cpp)?\.so$")
    yield from _strings(wheel, "torch", release, libraries, _SPEECH)


def _python(
    wheel: zipfile.ZipFile, program: str, release: str, paths: re.Pattern[str]
) -> Iterator[tuple[str, str, str, str, str]]:
    for name in wheel.namelist():
        if name.endswith(".py") and paths.search(name):
            for severity, text in python_calls.messages(wheel.read(name).decode(errors="replace")):
                yield program, release, severity, name, text


def _strings(
    wheel: zipfile.ZipFile, program: str, release: str, files: re.Pattern[str], speech: re.Pattern[str]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Texts of shared libraries, found by strings(1); a message that is put together at run time comes as its parts."""
    for name in wheel.namelist():
        if not files.search(name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = subprocess.run(["strings", "-a", "-n", "16", wheel.extract(name, folder)], capture_output=True, check=True)
        for text in dict.fromkeys(found.stdout.decode(errors="replace").splitlines()):
            if len(text) <= 400 and text.count(" ") >= 3 and speech.search(text) and not _NOISE.search(text):
                holed = text.replace("{}", "\0").replace("{", "(").replace("}", ")").replace("\0", "{}")
                yield program, release, "", name, re.sub(r"%[a-z0-9.]*[dsuxpfl]", "{}", holed)


def _strings_of_nvml(wheel: zipfile.ZipFile, release: str) -> Iterator[tuple[str, str, str, str, str]]:
    source = wheel.read("pynvml.py").decode(errors="replace")
    for match in re.finditer(r'NVML_ERROR_\w+:\s*"([^"]+)"', source):
        yield "nvml", release, "error", "pynvml.py", match[1]


def shell_messages(source: str) -> Iterator[tuple[str, str]]:
    """What a shell script prints.

    >>> list(shell_messages('die 3 "Could not find $1 for ${kernel}" "Try again"'))
    [('error', 'Could not find {} for {}'), ('error', 'Try again')]
    """
    for line in re.sub(r"\\\n\s*", " ", source).splitlines():
        match = re.match(
            r"""\s*(?:.*?(?:\|\||&&|then|;|\{)\s*)?(die|error|warn|echo|printf|invoke_command|deprecated|log)\b(.*)""", line
        )
        if match is None:
            continue
        severity = {"die": "error", "error": "error", "warn": "warning", "deprecated": "warning"}.get(match[1], "info")
        for text in re.findall(r"""\$?"((?:[^"\\]|\\.)*)\"""", match[2]):
            yield severity, re.sub(r"\$\{[^}]*\}|\$\([^)]*\)|\$\w+|\$[*@#?]", "{}", text).replace("\\n", "\n").replace("\\", "")


def help_texts(source: str) -> Iterator[tuple[str, str]]:
    """Open MPI's help files: sections in brackets, text with printf holes."""
    for line in source.splitlines():
        if not line.startswith(("#", "[")):
            yield "error", re.sub(r"%[a-z0-9]+", "{}", line.replace("{", "(").replace("}", ")"))
