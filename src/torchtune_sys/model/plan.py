"""A plan for one host: the changes, the refused changes, and their steps. Planning makes these values, every output format shows them.

A :class:`Change` is what a person decides about. Below it lie the few primitive steps that applying, undoing and the generated
script know: a running value, lines of a file that is ours alone, the state of a unit, a command with its inverse.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.model.actions import Action, Needs, Safety
from torchtune_sys.model.install import InstallRefused
from torchtune_sys.model.install import InstallStep as InstallStep


class Value(msgspec.Struct, frozen=True, kw_only=True, tag="value"):
    """A file below /proc or /sys that holds a running value. Undone by writing back what it held."""

    path: str
    value: str
    is_pattern: bool = False
    """``path`` holds ``*``: one value for each path that matches when it is written."""
    now: dict[str, str] = {}
    """What is set now, by the file that would be written."""
    counterpart: str = ""
    """The file that reads 0 once this one is written (``dirty_ratio`` for ``dirty_bytes``): of the two, the one that was not 0 is restored."""


class FileLine(msgspec.Struct, frozen=True, kw_only=True, tag="line"):
    """What one change adds to a file that torchtune-sys owns."""

    path: str
    key: str
    """What the lines are about; a later plan replaces the lines of the same key and keeps the others."""
    text: str
    """One or several lines, without the newline at the end."""


class Unit(msgspec.Struct, frozen=True, kw_only=True, tag="unit"):
    """A systemd unit that should be enabled and started (or disabled and stopped). Undone to the state that it had."""

    unit: str
    enabled: bool


class CommandStep(msgspec.Struct, frozen=True, kw_only=True, tag="command"):
    """A command that changes something which has no file of ours, and the command that takes it back."""

    argv: tuple[str, ...]
    undo: tuple[str, ...]


Step = Value | FileLine | Unit | CommandStep


class Change(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """What is changed, unique in the plan: ``vm.swappiness``, ``/sys/block/nvme0n1/queue/scheduler``, ``memlock``."""
    action: Action
    rules: tuple[str, ...]
    why: str
    """The title of the (first) rule that asked."""
    seen: str
    wanted: str
    safety: Safety
    needs: Needs
    steps: tuple[Step, ...]
    later: tuple[str, ...] = ()
    """What may override it later, and who then wins."""
    but: str = ""
    """What our own rules would find on this host once it is made, which is why it needs a decision."""
    effect: str = ""
    """What jobs that run meanwhile notice; empty: nothing."""
    disrupts: bool = False
    """Whether a running job could end or stall by it: not done beside one unless that is asked for."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is not made: somebody else owns the setting, two rules want different values, this host lacks it, or its place cannot be written."""

    key: str
    rules: tuple[str, ...]
    reason: str
    way: str
    """Where the change belongs, or what to decide."""
    unwritable: bool = False
    """Nobody decided so: the place is read-only, immutable or full."""


class Unjudged(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that asks for a change where it fails, and could not be checked."""

    rule: str
    reason: str
    late: bool
    """What it judges by was not read in time, or its look crashed: another run may tell."""


class ByHand(msgspec.Struct, frozen=True, kw_only=True):
    """What torchtune-sys shows and does not do."""

    rule: str
    why: str
    seen: str
    texts: tuple[str, ...]


class ToInstall(msgspec.Struct, frozen=True, kw_only=True):
    """A step of ``generate install`` that a failed rule asks for: shown, and never done by torchtune-sys."""

    rules: tuple[str, ...]
    step: InstallStep


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file that torchtune-sys owns, as it will be."""

    path: str
    before: str | None
    """Its content now; None: it is not there."""
    content: str
    mode: int = 0o644
    refresh: tuple[tuple[str, ...], ...] = ()
    """Commands that make the system read it, run after it was written and after it was restored."""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What would be written into one file, of /etc as of /proc and /sys."""

    path: str
    before: str | None
    """Its content now; None: it is not there."""
    after: str


class MadeBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The changes (by key) that earlier runs made and that were not undone."""

    since_start: frozenset[str] = frozenset()
    """Since the host was started."""
    earlier: frozenset[str] = frozenset()


NOTHING_MADE = MadeBefore()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    origin: str
    changes: tuple[Change, ...]
    waiting: tuple[Change, ...] = ()
    """Made already; they only wait for what :attr:`Change.needs` says."""
    files: tuple[PlannedFile, ...]
    refused: tuple[Refusal, ...]
    by_hand: tuple[ByHand, ...]
    unjudged: tuple[Unjudged, ...] = ()
    """Without them nobody knows whether the changes are all."""
    install: tuple[ToInstall, ...] = ()
    """What is to be installed for it, in order: a later step needs the earlier ones."""
    install_refused: tuple[InstallRefused, ...] = ()
    """What of that cannot be had on this host."""
    install_torch: str = ""
    """The build of torch in ``install``, as ``--torch`` takes it; empty for the newest that runs here, or none."""
