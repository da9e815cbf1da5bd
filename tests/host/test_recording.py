"""A recording answers as the host did, the refusals too, and does not claim to know what nobody asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.host.base import Host, follow
from torchtune_sys.host.environment import relevant, secret
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.recording.recorder import RecordingHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why


def again(host: RecordingHost, **more: Any) -> RecordedHost:
    return RecordedHost(json.loads(json.dumps(host.to_recording(**more))), "again")


def looks(host: Host, top: Path) -> list[Any]:
    paths = [
        f"{top}/{name}"
        for name in ("file", "link", "far/file", "loop", "none", "locked", "dir", "lines", "dangling", "dir/../file")
    ]
    found: list[Any] = []
    for path in paths:
        found += [host.text(path), host.stat(path), host.link(path), host.names(path), host.real(path), host.exists(path)]
    return [
        *found,
        host.space(str(top)),
        host.run(("sh", "-c", "echo hello; exit 3")),
        host.run(("/nonexistent/tool",)),
        host.ask("affinity"),
        host.ask("no-such-question"),
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_text("text")
    (tmp_path / "lines").write_text("one\ntwo\n\n")
    for name, target in (("link", "file"), ("far", "dir/.."), ("loop", "loop"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "locked").mkdir(mode=0)
    return tmp_path


def test_every_answer_is_repeated(tree: Path) -> None:
    host = RecordingHost(LiveHost())
    live = looks(host, tree)
    replayed = looks(again(host), tree)
    for before, after in zip(live, replayed, strict=True):
        if isinstance(before, Missing):
            assert isinstance(after, Missing) and after.why is before.why
        else:
            assert after == before


def test_what_nobody_asked_is_not_recorded(tree: Path) -> None:
    host = RecordingHost(LiveHost())
    host.names(str(tree / "dir"))
    host.text(f"{tree}/file")
    seen = again(host)
    for found in (
        seen.text("/etc/hostname"),
        seen.names(str(tree)),
        seen.run(("true",)),
        seen.ask("uid"),
        seen.env(),
        seen.space("/"),
    ):
        assert isinstance(found, Missing) and found.why is Why.NOT_RECORDED
    absent = seen.text(f"{tree}/dir/anything")  # its directory was listed, and it was not in there
    assert isinstance(absent, Missing) and absent.why is Why.ABSENT


def test_a_recording_of_a_recording_is_the_same(tree: Path) -> None:
    host = RecordingHost(LiveHost())
    looks(host, tree)
    host.env()
    first = host.to_recording()
    second = RecordingHost(RecordedHost(first, "first"))
    looks(second, tree)
    second.env()
    assert {**second.to_recording(), "origin": "live"} == first


def test_links_of_the_process_itself_do_not_tell_its_number() -> None:
    host = RecordingHost(LiveHost())
    live = host.text("/proc/self/status")
    found = host.to_recording()
    assert "/proc/self/status" in found["files"] and "/proc/self" not in found.get("links", {})
    assert RecordedHost(found, "again").text("/proc/self/status") == live


def test_intent_is_kept() -> None:
    host = RecordingHost(LiveHost())
    assert again(host, intent=Workload(ranks=8, data=("/data",))).intent == {"ranks": 8, "data": ["/data"]}


def test_secrets_are_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HF_TOKEN",
        "NCCL_SECRET",
        "TORCH_API_KEY",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "SLURM_JWT",
        "PIP_PASSWORD",
        "https_proxy",
    ):
        monkeypatch.setenv(name, "opensesame")
    monkeypatch.setenv("NCCL_X", "http://joe:opensesame@proxy:3128")
    monkeypatch.setenv("EDITOR", "opensesame")
    monkeypatch.setenv("NCCL_IB_PKEY", "1")
    host = RecordingHost(LiveHost())
    host.env()
    text = json.dumps(host.to_recording())
    assert "opensesame" not in text and "NCCL_IB_PKEY" in text


def test_relevant_keeps_what_rules_read() -> None:
    names = "NCCL_DEBUG TORCH_DISTRIBUTED_DEBUG PYTORCH_CUDA_ALLOC_CONF CUDA_VISIBLE_DEVICES NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS LD_PRELOAD PATH".split()  # noqa: SIM905
    env = dict.fromkeys((*names, "EDITOR", "SSH_CONNECTION", "GPG_TTY"), "x")
    assert sorted(relevant(env)) == sorted(names)
    assert not secret("NCCL_IB_PKEY", "1")


def test_following_links_ends() -> None:
    assert follow("/a", {"/a": "/b", "/b": "/a"}.get) == ""
    assert follow("/a/../../x/./y", {}.get) == "/x/y"
    assert follow("/" + "x/" * 5000, {}.get) == ""
    assert follow("", {}.get) == "/"


_PATHS = st.builds(
    "{}{}".format,
    st.sampled_from(["", "/"]),
    st.lists(st.sampled_from("abcd") | st.sampled_from(["..", ".", ""]), max_size=5).map("/".join),
)


@given(st.dictionaries(st.sampled_from(["/a", "/b", "/a/b", "/c/a", "/b/c/d"]), _PATHS, max_size=4), st.lists(_PATHS, max_size=6))
@settings(max_examples=60)
def test_keeping_where_folders_lead_changes_no_way(links: dict[str, str], paths: list[str]) -> None:
    host = RecordedHost({"links": links}, "made")
    assert [host._resolve(path) for path in paths] == [follow(path, links.get) for path in paths]


def test_an_answer_that_was_refused_keeps_its_remedy() -> None:
    refused = Missing(Why.DENIED, "NVML", "no permission", "run as root")

    class Refusing(LiveHost):
        def ask(self, question: str, timeout_s: float = 10.0) -> Any:
            return refused

        def env(self) -> Any:
            return refused

    host = RecordingHost(Refusing())
    host.ask("nvml")
    host.env()
    seen = again(host)
    assert seen.ask("nvml") == refused and seen.env() == refused


def test_recording_does_not_depend_on_the_order_of_asking(tree: Path) -> None:
    one, two = RecordingHost(LiveHost()), RecordingHost(LiveHost())
    paths = [f"{tree}/link", f"{tree}/far/file", "/proc/mounts", "/etc/os-release"]
    for path in paths:
        one.stat(path)
    for path in reversed(paths):
        two.stat(path)
    assert json.dumps(one.to_recording()) == json.dumps(two.to_recording())
