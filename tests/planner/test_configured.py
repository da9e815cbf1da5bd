"""A value that a file sets at the next boot, and that would do, is kept: ours comes later in the order and would lower it."""

from __future__ import annotations

import pytest
from simulate import Seen, recording

from torchtune_sys.host.queries import UNAME
from torchtune_sys.model.plan import FileLine, Value
from torchtune_sys.rules import by_id

RULE = by_id()["task-table-small"]
"""On 64 CPUs the kernel's own default of pid_max is 65536."""


@pytest.mark.parametrize(("configured", "written"), [("4194304", "4194304"), ("8192", "65536"), ("many", "65536")])
def test_a_better_value_at_boot_is_not_lowered(configured: str, written: str) -> None:
    files = {"/proc/sys/kernel/pid_max": "4096\n", "/usr/lib/sysctl.d/50-pid-max.conf": f"kernel.pid_max = {configured}\n"}
    dirs = {"/usr/lib/sysctl.d": ["50-pid-max.conf"]}
    (change,) = Seen(recording("healthy", files=files, dirs=dirs), [RULE]).plan.changes
    assert [step.value for step in change.steps if isinstance(step, Value)] == [written]
    assert [step.text for step in change.steps if isinstance(step, FileLine)] == [f"kernel.pid_max = {written}"]


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("99-z.conf", "kernel.pid_max = 8192", "99-z.conf:1 (= 8192) wins at boot"),
        ("99-z.conf", "kernel.pid_max = 8192", "sed -i '1s/^/# /' /etc/sysctl.d/99-z.conf"),
        ("99-z.conf", "kernel.pid_ma? = 8192", ""),
        ("99-z.conf", "-kernel.pid_max", "99-z.conf:1 excludes it"),
        ("99-a.conf", "-kernel.pid_max", ""),
    ],
)
def test_who_wins_at_boot(name: str, line: str, said: str) -> None:
    """As systemd-sysctl does: a pattern never beats the key itself, and ``-key`` takes back what files before it set."""
    files = {"/proc/sys/kernel/pid_max": "4096\n", f"/etc/sysctl.d/{name}": f"{line}\n"}
    (change,) = Seen(recording("healthy", files=files, dirs={"/etc/sysctl.d": [name]}), [RULE]).plan.changes
    told = [words for words in change.later if name in words]
    assert said in told[0] if said else not told


def test_what_systemctl_edit_wrote_wins_over_our_drop_in() -> None:
    """override.conf sorts after 90-….conf, and the last one wins (systemd.unit(5))."""
    rule, folder = by_id()["logind-removes-ipc"], "/etc/systemd/logind.conf.d"
    files = {f"{folder}/override.conf": "[Login]\nKillUserProcesses=no\n RemoveIPC = yes\n"}
    (change,) = Seen(recording("logind-removes-ipc.fail", files=files), [rule]).plan.changes
    assert change.later == (f"{folder}/override.conf (RemoveIPC = yes) wins over it: it is read after our file",)


@pytest.mark.parametrize(
    ("most", "hard"),
    [("1048576", "524288"), ("100000", "100000"), ("20000", "fs.nr_open is 20000: a limit on open files beyond it")],
)
def test_a_limit_on_open_files_lowers_nobody_s_and_lets_everybody_log_in(most: str, hard: str) -> None:
    """A login that may not have its limits is refused by pam_limits (setup_limits), root's too; systemd gives a hard limit of 524288."""
    rule = by_id()["nofile-limit-too-low"]
    found = Seen(recording("nofile-limit-too-low.fail", files={"/proc/sys/fs/nr_open": f"{most}\n"}), [rule]).plan
    if not found.changes:
        assert found.refused[0].reason.startswith(hard)
        return
    rows = next(step.text for change in found.changes for step in change.steps if isinstance(step, FileLine)).splitlines()
    assert rows == [f"{who} {row}" for who in ("*", "root") for row in ("soft nofile 65536", f"hard nofile {hard}")]


def on(kernel: str, files: dict[str, str], base: str = "healthy", **intent: int) -> Seen:
    answers = recording(base)["answers"]
    uname = {**answers[UNAME], "release": kernel}
    overlay = {"files": files, "answers": {UNAME: uname}, **({"intent": intent} if intent else {})}
    rule = "tcp-buffer-ceiling-low" if base != "healthy" else "somaxconn-low"
    return Seen(recording(base, **overlay), [by_id()[rule]])


@pytest.mark.parametrize(
    ("kernel", "written"), [("6.8.0-45-generic", "4096"), ("4.18.0-553.el8_10.x86_64", "400"), ("5.4.0-190-generic", "4096")]
)
def test_at_least_is_never_less_than_the_kernel_sets_by_itself(kernel: str, written: str) -> None:
    (change,) = on(kernel, {"/proc/sys/net/core/somaxconn": "128\n"}, ranks=8, nodes=50).plan.changes
    assert [step.value for step in change.steps if isinstance(step, Value)] == [written]
    assert [step.text for step in change.steps if isinstance(step, FileLine)] == [f"net.core.somaxconn = {written}"]


def test_the_other_numbers_stay_and_the_last_is_not_below_the_kernels_own() -> None:
    found = on("6.17.0", {"/proc/sys/net/ipv4/tcp_rmem": "8192 262144 1048576\n"}, "tcp-buffer-ceiling-low.fail")
    values = {change.key: step.value for change in found.plan.changes for step in change.steps if isinstance(step, Value)}
    assert values["net.ipv4.tcp_rmem"] == "8192 262144 33554432"
