"""Everything that the commands print about one host, in the process of the test: one look, and one rendering a command."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torchtune_sys.cli import main, take_snapshot
from torchtune_sys.cli.commands import check, plan
from torchtune_sys.cli.options import INTENT
from torchtune_sys.host.base import Host
from torchtune_sys.host.input.opening import PastedText
from torchtune_sys.model.snapshot import Snapshot

CHECK = (
    *(("check", "--format", name) for name in check.FORMATS),
    ("check", "--verbose", "--strict"),
    ("check", "--quiet"),
)
PLAN = (*(("plan", "--format", name) for name in plan.FORMATS), ("plan", "--verbose"))
FACTS = (("snapshot",), ("snapshot", "--format", "json"), ("record",))
GENERATE = (
    *(("generate", name) for name in ("sysctl", "limits", "modprobe", "tmpfiles", "udev", "tuned", "script")),
    ("generate", "systemd", "--unit", "train", "--defaults"),
    *(("generate", "kernel-args", "--format", name) for name in ("line", "grub", "grubby", "systemd-boot")),
    *(("generate", "env", "--format", name) for name in ("shell", "systemd", "slurm", "docker", "kubernetes", "json")),
    *(("generate", "numactl", "--format", name) for name in ("text", "commands", "wrapper", "json")),
    ("generate", "install"),
    ("generate", "install", "--format", "json"),
    *(("generate", "dockerfile", "--format", name) for name in ("docker", "podman", "kubernetes", "json")),
    ("generate", "dockerfile", "-o", "-"),
    ("generate", "script", "--stages", "install,tune"),
    ("generate", "cloud-init", "--stages", "install,tune"),
)
COMMANDS = (*CHECK, *PLAN, *FACTS, *GENERATE)


class Said:
    """What a command wrote, and its exit status."""

    def __init__(self, out: str, err: str, status: int) -> None:
        self.out, self.err, self.status = out, err, status

    @property
    def text(self) -> str:
        return self.out + self.err


def outputs(
    host: Callable[[], Host | PastedText],
    commands: tuple[tuple[str, ...], ...] = COMMANDS,
    change: Callable[[Snapshot], Snapshot] = lambda seen: seen,
) -> Iterator[tuple[str, Said]]:
    """The output of each command about the host; ``change`` is applied to what was seen of it."""
    memory: dict[str, Snapshot] = {}

    def ended(under_way: Any, timeout_s: float) -> Snapshot:
        return change(under_way.end(60.0))

    def opened(_options: Any = None, *_more: Any, **_named: Any) -> Host | PastedText:
        return host()

    def begin(options: Any, timings: Any = None, only: Any = None, found: Any = None) -> Callable[[], Snapshot]:
        key = repr((sorted((name, str(options.get(name))) for name in INTENT), only))
        if key not in memory:
            memory[key] = original(options, timings, only, found)()
        return lambda: memory[key]

    original = take_snapshot.begin
    with (
        mock.patch.object(take_snapshot, "ended", ended),
        mock.patch.object(take_snapshot, "opened", opened),
        mock.patch("torchtune_sys.cli.pipeline.begin", begin),
        mock.patch.object(take_snapshot, "begin", begin),
    ):
        for command in commands:
            yield " ".join(command), said(*command)


def said(*command: str) -> Said:
    with _streams() as (out, err):
        status = main.run(command)
        return Said(_text(out), _text(err), status)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")


@contextmanager
def _streams() -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "stderr", err):
        yield out, err
