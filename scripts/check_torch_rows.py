"""Compare the table of torch releases with the metadata of the wheels, through pip's own client (nothing is downloaded but metadata).

    python scripts/check_torch_rows.py                 every row, and whether releases are missing from the table
    python scripts/check_torch_rows.py 2.14.0 2.15.0   these rows

Exit status: 0 no difference, 1 differences (printed), 2 pip could not tell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from torchtune_sys.formats.requirements import asked_for
from torchtune_sys.knowledge.torch import Release, is_release, releases
from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.version import version

TIMEOUT_S = 300


class PipFailed(Exception):
    pass


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments, "--disable-pip-version-check"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if output.returncode != 0:
        lines = [line for line in output.stderr.splitlines() if line.startswith("ERROR")] or output.stderr.splitlines()[-1:]
        raise PipFailed("; ".join(lines) or f"pip ended with status {output.returncode}")
    return output.stdout


def usual_abi(row: Release) -> str:
    """The newest Python but one: neighbours of torch publish wheels for the newest later."""
    return [abi for abi in row.abis if abi[2:].isdigit()][-2]


def metadata(requirement: str, row: Release) -> tuple[Distribution, str]:
    """What pip would install on Linux x86_64 for a usual Python: the distribution and the file's name."""
    python = usual_abi(row)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        wanted = [
            "--only-binary=:all:",
            "--python-version",
            f"{python[2]}.{python[3:]}",
            "--implementation",
            "cp",
            "--target",
            folder,
        ]
        platforms = [
            word
            for tag in (row.tag, "manylinux1_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")
            for word in ("--platform", tag)
        ]
        pip(
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
            "--report",
            str(report),
            *wanted,
            *platforms,
            requirement,
        )
        found = json.loads(report.read_text())["install"][0]
    about = found["metadata"]
    item = Distribution(
        name=about["name"],
        version=about["version"],
        location="",
        requires=tuple(about.get("requires_dist", ())),
        requires_python=about.get("requires_python", ""),
    )
    return item, found["download_info"]["url"].rpartition("/")[2]


def differences(row: Release) -> list[str]:
    item, file = metadata(f"torch=={row.torch}", row)
    python = usual_abi(row)
    here = {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "python_version": f"{python[2]}.{python[3:]}",
    }
    here |= {"python_full_version": f"{here['python_version']}.1", "implementation_name": "cpython"}
    others: dict[str, Distribution] = {}
    toolkit = next((wanted for wanted in asked_for(item, here, {}) if wanted.name == "cuda-toolkit"), None)
    if toolkit is not None:
        others["cuda-toolkit"] = metadata(f"cuda-toolkit{toolkit.specifier}", row)[0]
    asked: dict[str, str] = {}
    for wanted in asked_for(item, here, others):
        name = wanted.name.removeprefix("nvidia-").partition("-cu")[0]
        asked.setdefault(name, wanted.specifier.removeprefix("==").removesuffix(".*"))
    found = [
        f"{row.torch}: {name}: the table has {pin}, the wheel asks for {asked.get(name, 'none')}"
        for name, pin in row.pins.items()
        if not same(pin, asked.get(name, ""))
    ]
    if item.requires_python != row.requires_python:
        found.append(f"{row.torch}: requires_python: the table has {row.requires_python}, the wheel {item.requires_python}")
    if row.tag not in file:
        found.append(f"{row.torch}: tag: the table has {row.tag}, the file is {file}")
    return found + torchvision_differences(row)


def same(pin: str, asked: str) -> bool:
    """Specifiers may be written in any order."""
    return sorted(pin.split(",")) == sorted(asked.split(","))


def torchvision_differences(row: Release) -> list[str]:
    if not row.torchvision[:1].isdigit():
        return []
    item, _ = metadata(f"torchvision=={row.torchvision}", row)
    pin = next((line for line in item.requires if line.startswith(("torch ", "torch="))), "")
    return [] if f"=={row.torch}" in pin else [f"{row.torch}: torchvision {row.torchvision} asks for {pin or 'no torch'}"]


def missing_rows() -> list[str]:
    """Releases that pip knows and the table does not, from the oldest row on."""
    line = next((line for line in pip("index", "versions", "torch").splitlines() if line.startswith("Available versions:")), "")
    names = [name.strip() for name in line.partition(":")[2].split(",")]
    oldest, there = version(releases()[0].torch), {row.torch for row in releases()}
    return [
        f"{name}: is not in the table"
        for name in names
        if name and is_release(name) and version(name) >= oldest and name not in there
    ]


def main(wanted: list[str]) -> int:
    table = {row.torch: row for row in releases()}
    status = 0
    for name in wanted or list(table):
        try:
            found = differences(table[name]) if name in table else [f"{name}: is not in the table"]
        except (PipFailed, subprocess.TimeoutExpired, OSError, KeyError, IndexError) as error:
            print(f"{name}: pip could not tell: {error}", file=sys.stderr)
            status = 2
            continue
        print("\n".join(found) if found else f"{name}: as the table has it")
        status = max(status, 1 if found else 0)
    if not wanted:
        try:
            late = missing_rows()
        except PipFailed as error:
            print(f"pip could not list releases: {error}", file=sys.stderr)
            return 2
        print("\n".join(late) if late else "no release is missing from the table")
        status = max(status, 1 if late else 0)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
