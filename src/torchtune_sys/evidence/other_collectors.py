"""Reports on the environment that other tools print, in collect_env's words: MMCV and detectron2, SGLang, Transformers, Accelerate and
Diffusers, DeepSpeed's ds_report, ComfyUI, Ultralytics; the older form of PyTorch's and fairseq's issues; and a collect_env report whose line ends were lost.

Each label is one that the tool's source prints; what stands there too (weights, paths, flags) says nothing of a host.
"""

from __future__ import annotations

import re

_LABELS = (
    r"PyTorch version|Is debug build|(?:CUDA|ROCM|XPU) used to build PyTorch|OS|GCC version|Clang version|CMake version|Libc version"
    r"|Python version|Python platform|Is (?:CUDA|XPU|XNNPACK) available|CUDA runtime version|CUDA_MODULE_LOADING set to"
    r"|GPU models and configuration|GPU \d{1,2}|Nvidia driver version|cuDNN version|(?:HIP|MIOpen) runtime version|CPU"
    r"|Versions of relevant libraries|Architecture|CPU op-mode\(s\)|Address sizes|Byte Order|CPU\(s\)|On-line CPU\(s\) list|Vendor ID"
    r"|Model name|CPU family|Thread\(s\) per core|Core\(s\) per socket|Socket\(s\)|Hypervisor vendor|Flags"
)
_FEW = 4


def unfolded(text: str) -> str:
    """Return ``text`` with a line for each label where a report was pasted as one paragraph.

    >>> unfolded("PyTorch version: 2.5.1 Is debug build: False CUDA used to build PyTorch: 12.4 ROCM used to build PyTorch: N/A OS: x").count("\\n")
    4
    """
    if not any("PyTorch version" in line and "used to build PyTorch" in line for line in text.split("\n")):
        return text
    label = re.compile(rf"(?<=\S) +(?=(?:{_LABELS}) ?:|={{8,}}|\[(?:pip3?|conda)\] \S)")
    return "\n".join(
        label.sub("\n", line) if "PyTorch version" in line and len(label.findall(line)) >= _FEW else line
        for line in text.split("\n")
    )


_Found = dict[str, str]
_SEPARATOR = r"(?::[ \t]*|[ \t]{2,}|[ \t]*\.{3,}[ \t]*)"
_NAMES: tuple[tuple[str, str], ...] = (
    # mmengine/utils/dl_utils/collect_env.py, detectron2/utils/collect_env.py, lmdeploy/cli
    ("PyTorch version", rf"PyTorch{_SEPARATOR}(\d+\.\d[\w.+]*)(?: @\S+)?"),
    ("Is CUDA available", rf"CUDA available{_SEPARATOR}(True|False)"),
    ("Is CUDA available", rf"GPU available{_SEPARATOR}(Yes|No)\b.*"),
    # sglang/check_env.py, under ROCm
    ("Is CUDA available", r"ROCM available: (True|False)"),
    ("ROCM used to build PyTorch", r"PyTorch: \d\S*?\+rocm(\d[\w.]*)"),
    ("Python version", rf"Python{_SEPARATOR}(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?\b.*)"),
    ("Nvidia driver version", rf"Driver version{_SEPARATOR}(\d{{3}}\.\d[\d.]*)"),
    ("CUDA used to build PyTorch", r"- CUDA Runtime (\d+\.\d+)"),
    ("CUDA runtime version", rf"NVCC{_SEPARATOR}.*?\bV(\d+\.\d+(?:\.\d+)?)\b.*"),
    ("CUDA runtime version", rf"NVCC{_SEPARATOR}.*?\b(\d+\.\d+(?:\.\d+)?)\b.*"),
    # transformers/commands/env.py, accelerate/commands/env.py, diffusers/commands/env.py
    ("PyTorch version", r"- PyTorch version(?: \((?:GPU|accelerator)\?\))?: (\d\S*)(?: \((?:True|False|NA|CUDA|XPU|HPU|NPU)\))?"),
    ("Is CUDA available", r"- PyTorch version \(GPU\?\): \S+ \((True|False)\)"),
    ("Python platform", r"- Platform: (Linux-\S+|Windows-\S+|macOS-\S+)"),
    ("Python version", r"- Python version: (\d+\.\d+\.\d+)"),
    # the form that PyTorch had until 1.12, and that fairseq, torchtext and others have still
    ("PyTorch version", r"- PyTorch Version(?: \(e\.g\.,? [^)\n]{1,40}\))?:? {1,4}v?(\d+\.\d[\w.+]*)"),
    ("OS", r"- OS(?: \(e\.g\.,? [^)\n]{1,40}\))?: {1,4}([A-Z]\S.{0,60})"),
    ("Python version", r"- Python version: {1,4}(\d+\.\d+)"),
    # deepspeed/env_report.py
    ("PyTorch version", r"torch version \.{3,} (\d\S*)"),
    ("CUDA used to build PyTorch", r"torch cuda version \.{3,} (\d+\.\d+)"),
    ("ROCM used to build PyTorch", r"torch hip version \.{3,} (\d\S*)"),
    ("CUDA runtime version", r"nvcc version \.{3,} (\d+\.\d+)"),
    # ComfyUI comfy/model_management.py
    ("PyTorch version", r"pytorch version: (\d\S*)"),
)
_GPUS = (
    r"GPU (?P<numbers>\d{1,3}(?:,\d{1,3})*)(?::[ \t]*|[ \t]{2,})(?P<name>\S.*?)(?:[ \t]*\(arch=[\d.]+\))?",
    r"- (?:GPU type|Accelerator): (?P<name>[^,\n]*(?:NVIDIA|AMD|Tesla|GeForce)[^,\n]*?)(?:, \d+ MiB)?",
    r"- GPU models and configuration: {1,4}(?:(?:1|one) ?[x*]? )?(?P<name>(?:NVIDIA |AMD )?(?:Tesla|GeForce|RTX|GTX|Quadro|TITAN|A100|H100|V100|Instinct)[\w ()-]{0,40})",
    r"Device: cuda:(?P<numbers>\d{1,2}) (?P<name>[^:\n]{3,60}?) :.*",
)
_ULTRALYTICS = re.compile(r"Python-(\d+\.\d+\.\d+) torch-(\S+) (?:(CPU)|CUDA:(\d) \((.{3,60}?), \d+MiB\))")
_TELLING = re.compile(
    r"^[ \t>`*|]*(?:sys\.platform\b|PyTorch compiling details|- PyTorch [vV]ersion|torch version \.{3}|pytorch version: \d|CUDA available:|ROCM available:|torch hip version \.{3})",
    re.MULTILINE,
)
_OS = {"darwin": "macOS", "win32": "Microsoft Windows"}


_CAPABILITY = re.compile(r"GPU (?P<numbers>\d{1,3}(?:,\d{1,3})*) Compute Capability: (?P<major>\d{1,2})\.(?P<minor>\d)\b")
"""Of SGLang; a line may be padded before the next one."""


def capabilities(text: str) -> dict[int, tuple[int, int]]:
    """Return the compute capability of GPUs by their numbers, as it is named first.

    >>> capabilities("GPU 0,1: NVIDIA H20\\nGPU 0,1 Compute Capability: 9.0\\n")
    {0: (9, 0), 1: (9, 0)}
    """
    found: dict[int, tuple[int, int]] = {}
    for match in _CAPABILITY.finditer(text) if " Compute Capability: " in text else ():
        for number in match["numbers"].split(","):
            found.setdefault(int(number), (int(match["major"]), int(match["minor"])))
    return found


def values(text: str) -> tuple[_Found, tuple[str, ...], tuple[str, ...]]:
    """Return (what is told under collect_env's labels, the GPUs, the architectures that torch has code for); empty where nothing is.

    >>> values("- Platform: Linux-6.8.0-x86_64-with-glibc2.39\\n- PyTorch version (GPU?): 2.4.1+cu121 (True)")[0]["PyTorch version"]
    '2.4.1+cu121'
    >>> values("- PyTorch version (accelerator?): 2.9.0+cu128 (CUDA)\\n- GPU type: NVIDIA GeForce RTX 5070 Ti Laptop GPU")[:2]
    ({'PyTorch version': '2.9.0+cu128'}, ('NVIDIA GeForce RTX 5070 Ti Laptop GPU',))
    >>> form = " - PyTorch Version (e.g., 1.0): 1.10.2\\n - OS (e.g., Linux): Ubuntu 18.04\\n - Python version: 3.8\\n - GPU models and configuration: Tesla V100\\n"
    >>> values(form)[:2]
    ({'PyTorch version': '1.10.2', 'OS': 'Ubuntu 18.04', 'Python version': '3.8'}, ('Tesla V100',))
    """
    found: _Found = {}
    gpus: dict[int, str] = {}
    if (short := _ULTRALYTICS.search(text)) is not None:
        found = {"Python version": short[1], "PyTorch version": short[2], "Is CUDA available": str(short[3] is None)}
        gpus = {0: short[5]} if short[5] else {}
    if _TELLING.search(text) is None:
        return found, tuple(gpus.values()), ()
    names = [(label, re.compile(rf"{pattern}[ \t`|]*$")) for label, pattern in _NAMES]
    lists = [re.compile(rf"{pattern}[ \t`|]*$") for pattern in _GPUS]
    for line in text.split("\n"):
        line = line[:2000].strip(" \t>`|")
        for label, pattern in names:
            if label not in found and (match := pattern.match(line)):
                found[label] = match[1].strip()
        for pattern in lists:
            if match := pattern.match(line):
                _add_gpus(gpus, match)
    system = re.search(r"^[ \t>`]*sys\.platform(?::[ \t]*|[ \t]{2,})(darwin|win32)\b", text, re.MULTILINE)
    if system is not None:
        found["OS"] = _OS[system[1]]
    return found, tuple(gpus[number] for number in sorted(gpus)), _architectures(text)


def _add_gpus(gpus: dict[int, str], match: re.Match[str]) -> None:
    numbers = match.groupdict().get("numbers") or "0"
    for number in numbers.split(","):
        gpus.setdefault(int(number), match["name"])


def _architectures(text: str) -> tuple[str, ...]:
    """Return what ``torch.__config__.show()`` says that nvcc compiled for.

    >>> _architectures("- NVCC architecture flags: -gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_90,code=compute_90")
    ('sm_80', 'compute_90')
    """
    line = re.search(r"NVCC architecture flags: (-gencode;arch=\S+)", text)
    return tuple(dict.fromkeys(re.findall(r"code=((?:sm|compute)_\d{2,3}[af]?)", line[1]))) if line else ()
