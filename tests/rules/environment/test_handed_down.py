"""What a session hands down to the programs that it starts: the umask, and signals that are ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.rules.environment import RULES

RULE = {rule.id: rule for rule in RULES}


def _with_session(seen: Snapshot, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, session=msgspec.structs.replace(need(seen.session), **facts))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(0o022, Verdict.PASS), (0o077, Verdict.PASS), (0o177, Verdict.FAIL), (0o277, Verdict.FAIL), (0o477, Verdict.FAIL)],
)
def test_the_umask_and_what_its_owner_needs(mask: int, expected: Verdict) -> None:
    """177 leaves files alone and makes directories that nobody can enter."""
    seen = load("umask-shuts-owner-out.fail")
    handed = msgspec.structs.replace(need(seen.session).handed_down, umask=mask)
    assert engine.judge(_with_session(seen, handed_down=handed), [RULE["umask-shuts-owner-out"]])[0].verdict is expected


def test_root_is_kept_out_by_no_umask_and_background_jobs_ignore_ctrl_c() -> None:
    seen = load("umask-shuts-owner-out.fail")
    assert engine.judge(_with_session(seen, uid=0), [RULE["umask-shuts-owner-out"]])[0].verdict is Verdict.PASS
    assert engine.judge(load("signals-kept-from-programs.pass"), [RULE["signals-kept-from-programs"]])[0].verdict is Verdict.PASS
