"""The result of a run of ``apply`` or ``undo``, one entry for each setting."""

from __future__ import annotations

import enum

import msgspec

from torchtune_sys.model.plan import FileDiff, Unjudged


class State(str, enum.Enum):
    """Where a setting stands at the end of a run."""

    CURED = "cured"
    """The rules that asked for it find nothing any more, now and after the next boot."""
    LOST_AT_BOOT = "lost-at-boot"
    """Cured now, and something else sets it at the next boot, or nothing keeps it."""
    WAITS = "waits"
    """Made; takes effect after what ``needs`` says."""
    REFUSED = "refused"
    """Not made: somebody else owns it, two rules want different values, or this host lacks it."""
    FAILED = "failed"
    """Could not be made, or taken back; or was made, and the rules find the same as before, or could not be checked again."""
    LEFT = "left"
    """Not touched: nobody decided on it (apply), or somebody changed it since (undo)."""
    RESTORED = "restored"
    """As it was before the run that was undone."""


class CommentOut(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="comment-out"):
    """The line that wins at the next boot is taken out."""

    path: str
    line: int
    """From 1, as it stood when it was read."""


class DisableUnit(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="disable-unit"):
    """The unit that sets it at the next boot is not started any more."""

    unit: str


class LostAtBoot(msgspec.Struct, frozen=True, kw_only=True):
    """Why a setting that was cured is not so after the next boot."""

    words: str
    remedy: CommentOut | DisableUnit | None = None
    """What keeps it cured, where that is one line or one unit."""


class SettingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """As in the plan: ``vm.swappiness``, ``limit memlock`` …"""
    rule: str
    """The (first) rule that asked for it; empty where the journal does not tell."""
    state: State
    seen: str
    """What it was before the run."""
    wanted: str
    needs: str = "nothing"
    """What must happen before it takes effect; of what is lost at boot, who takes it back and what mends that."""
    remedy: CommentOut | DisableUnit | None = None
    """Of what is lost at boot: the action that keeps it cured, for who reads no words."""
    made_already: bool = False
    """Left, since an earlier run made it: it only waits for what ``needs`` says."""
    unwritable: bool = False
    """Refused, though nobody decided so: the place is read-only, immutable or full."""
    detail: str = ""
    """In words: why, who sets it at boot, what to do."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    run: int | None
    """Number of the run in the journal; null where nothing was done."""
    changes: tuple[SettingOutcome, ...]
    """One entry a setting."""
    diff: tuple[FileDiff, ...] = ()
    """Of a dry run: each file and each running value that would be written."""
    unjudged: tuple[Unjudged, ...] = ()
    """Of a run of apply: rules that might have asked for more changes, and could not be checked."""
