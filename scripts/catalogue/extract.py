"""Write ``knowledge/data/messages.tsv`` anew.

``python scripts/catalogue/extract.py --mirrors DIR --wheels DIR --linux DIR`` (run with PYTHONPATH=scripts): DIR of mirrors holds a git directory
``OWNER+NAME/repo`` for each repository of ``sources.py``; DIR of wheels what ``pip download --no-deps`` brought (torch, triton,
nvidia-cuda-runtime, nvidia-ml-py); DIR of Linux an unpacked kernel source. What is missing keeps its rows.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from catalogue import c_calls, python_calls, released
from catalogue.sources import KERNEL, REPOSITORIES, Repository
from torchtune_sys.knowledge.messages import templates

OUT = Path(__file__).parents[2] / "src/torchtune_sys/knowledge/data/messages.tsv"
_HEAD = "# Written by scripts/catalogue/extract.py; do not edit. word\tprogram\treleases\tseverity\tsource\ttext\n"
_LONGEST = 220
_KERNEL_FILES = (
    "drivers/net/ethernet/mellanox/mlx5/core", "drivers/infiniband/hw/mlx5", "drivers/infiniband/core", "drivers/infiniband/hw/efa",
    "drivers/pci/pcie", "drivers/pci/pci.c", "drivers/pci/setup-res.c", "drivers/pci/setup-bus.c", "drivers/pci/probe.c", "drivers/iommu", "mm/oom_kill.c", "kernel/cgroup", "kernel/module", "kernel/hung_task.c", "kernel/watchdog.c",
    "kernel/panic.c", "drivers/nvme/host/core.c", "drivers/nvme/host/pci.c", "fs/nfs", "net/ipv4", "net/core/dev.c", "drivers/edac", "arch/x86/kernel/cpu/mce",
    "block/blk-core.c", "fs/ext4/super.c", "mm/hugetlb.c", "mm/page_alloc.c", "kernel/fork.c", "drivers/gpu/drm/amd/amdkfd",
    "drivers/gpu/drm/amd/amdgpu",
)  # fmt: skip


class Found(NamedTuple):
    program: str
    release: str
    severity: str
    source: str
    text: str


def git(repository: Path, *arguments: str, feed: bytes = b"") -> bytes:
    return subprocess.run(["git", f"--git-dir={repository}", *arguments], input=feed, capture_output=True, check=True).stdout


def release_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))


def sampled(repository: Repository, path: Path) -> list[tuple[str, str]]:
    """Releases and their tags, oldest first."""
    if not repository.tags:
        return [("", "HEAD")]
    matches = (re.fullmatch(repository.tags, tag) for tag in git(path, "tag").decode().split())
    by_release = {match[1].replace("-", "."): match[0] for match in matches if match}
    known = sorted(
        (item for item in by_release.items() if release_key(item[0]) >= release_key(repository.least or "0")),
        key=lambda item: release_key(item[0]),
    )
    step = max(1, (len(known) - 1) / max(1, repository.most - 1)) if len(known) > 1 else 1
    chosen = sorted({round(len(known) - 1 - number * step) for number in range(min(repository.most, len(known)))})
    return [known[number] for number in chosen if number >= 0]


def from_repository(repository: Repository, path: Path) -> Iterator[Found]:
    """Each message of each sampled release; a file that several releases share is read once."""
    pattern = re.compile(repository.paths)
    wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for release, tag in sampled(repository, path):
        for line in git(path, "ls-tree", "-r", tag).decode(errors="replace").splitlines():
            about, _, name = line.partition("\t")
            if pattern.search(name) and about.split()[1] == "blob":
                wanted[about.split()[2]].append((release, name))
    for blob, source in blobs(path, list(wanted)):
        name = wanted[blob][-1][1]
        for severity, text in said(source, name, repository):
            for release, _ in wanted[blob]:
                yield Found(repository.program, release, severity, name, text)


def blobs(path: Path, names: list[str]) -> Iterator[tuple[str, str]]:
    data = git(path, "cat-file", "--batch", feed="\n".join(names).encode() + b"\n")
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, kind, *size = data[at:end].decode().split()
        if kind == "missing":
            at = end + 1
            continue
        content = data[end + 1 : end + 1 + int(size[0])]
        at = end + 2 + int(size[0])
        yield name, content.decode(errors="replace")


def said(source: str, name: str, repository: Repository) -> Iterable[tuple[str, str]]:
    if repository.calls:
        return c_calls.messages(source, repository.calls)
    if name.endswith(".py"):
        return python_calls.messages(source)
    if name.endswith(".txt"):
        return released.help_texts(source)
    return released.shell_messages(source)


def from_linux(folder: Path) -> Iterator[Found]:
    release = ".".join(re.findall(r"(?m)^(?:VERSION|PATCHLEVEL) = (\d+)", (folder / "Makefile").read_text()))
    for below in _KERNEL_FILES:
        place = folder / below
        for path in sorted(place.rglob("*.c")) if place.is_dir() else [place]:
            if path.exists():
                for severity, text in c_calls.messages(path.read_text(errors="replace"), KERNEL):
                    yield Found("linux", release, severity, str(path.relative_to(folder)), text)


def lines_of(text: str) -> Iterator[str]:
    """The lines of a template, without what says nothing."""
    for line in text.split("\n"):
        line = " ".join(line.replace("\t", " ").split())[:_LONGEST]
        line = re.sub(r"\{\w*\}(?: ?\{\w*\})+", "{}", line).strip()
        if tells(line):
            yield line


def tells(line: str) -> bool:
    """Whether a line with these words is this message, and not any text."""
    template = templates.parsed(line)
    words = [word for piece in template.pieces for word in re.findall(r"[A-Za-z]{3,}", piece)]
    return (
        template.weight >= 14
        and len(words) >= (2 if ":" in line else 3)
        and bool(templates.whole_words(template))
        and len(template.pieces) <= 12
    )


def rows(found: Iterable[Found]) -> list[tuple[str, str, str, str, str]]:
    """One row for each text of a program, with the first and last release that has it."""
    releases: dict[tuple[str, str], set[str]] = defaultdict(set)
    about: dict[tuple[str, str], tuple[str, str]] = {}
    for each in found:
        for line in lines_of(each.text):
            key = (each.program, line)
            releases[key].add(each.release)
            if about.get(key, ("", ""))[0] in ("", "info"):
                about[key] = (each.severity, each.source)
    result = []
    for (program, text), seen in releases.items():
        first, last = min(seen, key=release_key), max(seen, key=release_key)
        result.append((program, first if first == last else f"{first}-{last}", *about[program, text], text))
    return result


def anchored(found: list[tuple[str, str, str, str, str]]) -> list[str]:
    """The rows as lines, each behind the rarest of its whole words."""
    whole = [templates.whole_words(templates.parsed(row[4])) for row in found]
    often = Counter(word for words in whole for word in set(words))
    return sorted(
        "\t".join((min(words, key=lambda word: (often[word], -len(word))), *row))
        for row, words in zip(found, whole, strict=True)
        if words
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirrors", type=Path, default=Path())
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--linux", type=Path)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    found: list[tuple[str, str, str, str, str]] = []
    for repository in REPOSITORIES:
        path = asked.mirrors / repository.name.replace("/", "+") / "repo"
        if path.exists() and (not asked.only or repository.program in asked.only.split(",")):
            found += rows(from_repository(repository, path))
    if asked.linux and (not asked.only or "linux" in asked.only.split(",")):
        found += rows(from_linux(asked.linux))
    if asked.wheels and (not asked.only or "wheels" in asked.only.split(",")):
        found += rows(Found(*each) for each in released.from_wheels(asked.wheels))
    renewed = {row[0] for row in found}
    kept = [tuple(line.split("\t")[1:]) for line in OUT.read_text().splitlines() if not line.startswith("#")]
    found += [row for row in kept if row[0] not in renewed]  # type: ignore[misc]
    OUT.write_text(_HEAD + "\n".join(anchored(found)) + "\n", encoding="utf-8")
    for program, count in sorted(Counter(row[0] for row in found).items()):
        print(f"{program:26}{count:7}", "new" if program in renewed else "kept")
    print(f"{len(found)} messages, {OUT.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
