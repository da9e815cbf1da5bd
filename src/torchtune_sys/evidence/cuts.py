"""Whether a pasted output lacks its beginning or its end, by what each program always prints there."""

from __future__ import annotations

import re
from typing import NamedTuple

from torchtune_sys.evidence.nvidia.topology import parse_matrix


class _Shape(NamedTuple):
    name: str
    inside: str
    """Words that only the middle of this output has."""
    first: str
    last: str
    lost: str
    """What is not known without the end."""


_SHAPES = (
    _Shape(
        "collect_env",
        r"(?m)^[ \t>|]{0,8}(?:Is debug build|CUDA_MODULE_LOADING set to|HIP runtime version|Is XNNPACK available) *:",
        r"PyTorch version *:",
        r"(?i)relevant libraries|\[pip3?\]|\[conda\]",
        "the packages",
    ),
    _Shape(
        "sglang's check_env",
        r"(?m)^[ \t>|]{0,8}GPU [\d,]{1,40} Compute Capability: ",
        r"(?m)^[ \t>|]{0,8}Python: ",
        r"ulimit soft|Hypervisor",
        "what follows, to the limits",
    ),
    _Shape(
        "nvidia-smi",
        r"(?m)^[ \t>|]{0,8}\|? ?\|\s{1,4}(?:N/A|\d{1,3}%|ERR!)\s{1,6}(?:\d{1,3}C|N/A)\s{1,6}P\d{1,2}\s",
        r"NVIDIA-SMI \d",
        r"Processes:|No running processes|Processes +\|",
        "the processes, and GPUs that may follow",
    ),
)
"""Sources: torch/utils/collect_env.py (env_info_fmt), sglang/check_env.py, nvidia-smi's table. vLLM prints its packages under a heading of its own."""


def cuts(text: str) -> str:
    """Return what is missing, for a person; ``""`` where nothing is seen to be.

    >>> cuts("PyTorch version: 2.5.1\\nIs debug build: False\\nGPU models and configuration: GPU 0: NVIDIA H20\\n")
    'collect_env ends early (the packages are not known)'
    >>> cuts("PyTorch version: 2.5.1\\nIs debug build: False\\n[pip3] torch==2.5.1\\n")
    ''
    """
    found = []
    for shape in _SHAPES:
        inside = re.search(shape.inside, text)
        if inside is None:
            continue
        if not re.search(shape.first, text[: inside.start()]):
            found.append(f"{shape.name} lacks its beginning")
        if not re.search(shape.last, text[inside.end() :]):
            found.append(f"{shape.name} ends early ({shape.lost} are not known)")
    matrix = parse_matrix(text)
    if matrix is not None and matrix.rows and not matrix.whole():
        found.append(f"the topology has rows for {len(matrix.rows)} of {len(matrix.gpus())} GPUs only, and is not used")
    return "; ".join(found)
