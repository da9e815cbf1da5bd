"""Whose session is judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import SessionFacts, Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.session.probe import preload_paths, probe


def session(uid: Any = None, **env: str) -> SessionFacts:
    uid = uid or {"uid": 1000, "gid": 1000, "groups": [], "user": "alice"}
    return probe(
        RecordedHost({"env": env, "answers": {"uid": uid, "cwd": "/data"}, "files": {"/lib/there.so": ""}}, "test"), Workload()
    )


def test_an_ordinary_session() -> None:
    found = session(USER="alice", NCCL_DEBUG="INFO", EDITOR="vi", HF_TOKEN="hf_x", VIRTUAL_ENV="/v")
    assert (found.user, found.uid, found.passwd_entry, found.sudo_user, found.virtual_env, found.cwd) == (
        "alice",
        1000,
        True,
        "",
        "/v",
        "/data",
    )
    assert found.env == {"USER": "alice", "NCCL_DEBUG": "INFO", "VIRTUAL_ENV": "/v"}


def test_sudo_and_conda() -> None:
    found = session({"uid": 0, "gid": 0, "groups": [], "user": "root"}, SUDO_USER="alice", CONDA_PREFIX="/opt/conda")
    assert (found.user, found.sudo_user, found.virtual_env) == ("root", "alice", "/opt/conda")
    assert session(DOAS_USER="bob").sudo_user == "bob"


@pytest.mark.parametrize("name", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_a_number_without_a_name(name: str) -> None:
    nobody = {"uid": 1234, "gid": 0, "groups": [], "user": None}
    found = session(nobody)
    assert found.passwd_entry is False and isinstance(found.user, Missing) and found.user.why is Why.ABSENT
    assert session(nobody, **{name: "me"}).user == "me"


def test_preloads() -> None:
    assert session(LD_PRELOAD="/lib/there.so:/lib/gone.so libx.so").preloads == {"/lib/there.so": True, "/lib/gone.so": False}
    assert preload_paths(" :: ") == ()


@pytest.mark.parametrize("answer", [7, {}, {"code": 1, "netlink": ""}, ["code", "netlink"]])
def test_refusals_that_are_no_answer(answer: Any) -> None:
    host = RecordedHost({"env": {}, "answers": {"uid": {"uid": 0}, "cwd": "/", "refusals": answer}}, "test")
    found = probe(host, Workload()).refusals
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


@given(st.text())
def test_any_preload_is_read(text: str) -> None:
    assert all(path.startswith("/") for path in preload_paths(text))
