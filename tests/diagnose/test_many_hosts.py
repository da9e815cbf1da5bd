"""What a parallel shell printed of many hosts, processes that ps(1) shows, warnings that stand alone, and what is said of a text that is set aside."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.text.lines import lines_of
from torchtune_sys.fleet.pasted_hosts import compared
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis


def _said(text: str) -> Diagnosis:
    return diagnose([InputText(name="log", excerpt=excerpt(io.BytesIO(text.encode())))], compare=compared)


def _first(text: str) -> str:
    causes = _said(text).causes
    return causes[0].cause if causes else ""


SHELLS = {
    "pdsh": "{host}: {said}",
    "ansible": "{host} | CHANGED | rc=0 >>\n{said}",
    "dshbak": "----------------\n{host}\n----------------\n{said}",
    "marks": "=== {host} ===\n{said}",
    "tail": "==> {host} <==\n{said}",
}
DIFFERENT = {
    "mtu-differs-between-nodes": ("7: bond1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP", "7: bond1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP"),
    "hardware-differs-between-nodes": ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-2)"),
    "narrow-link": ("\t\tRate: 400", "\t\tRate: 100"),
    "cpu-quota-on-one-node": ("nr_throttled 0", "nr_throttled 812331"),
}  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("cause", DIFFERENT)
def test_one_host_that_says_something_else_than_the_others(shell: str, cause: str) -> None:
    usual, odd = DIFFERENT[cause]
    text = "\n".join(SHELLS[shell].format(host=f"worker-{at}", said=odd if at == 3 else usual) for at in range(1, 5))
    found = _said(text).causes[0]
    assert (found.cause, found.hosts) == (cause, ("worker-3",))
    alike = "\n".join(SHELLS[shell].format(host=f"worker-{at}", said=usual) for at in range(1, 5))
    assert _first(alike) == ""


PORTS = "".join(
    f"n{at}: \t\tState: {'Down' if at == 2 else 'Active'}\nn{at}: \t\tRate: {10 if at == 2 else 400}\n" for at in range(1, 5)
)
COMPLETIONS = "".join(
    f"n{at}:41:50 [3] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer n{peer}<51606> with error 12, opcode 0, len 0, vendor err 129 (Recv)\n"
    for at, peer in ((1, 2), (3, 2))
)


def test_a_port_without_a_link_has_no_slow_one() -> None:
    assert "narrow-link" not in {each.cause for each in _said(PORTS).causes}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (COMPLETIONS, ("n2",)),
        (COMPLETIONS.split("\n")[0], ("n1",)),
        (COMPLETIONS + COMPLETIONS.replace("n1:", "n2:").replace("peer n2", "peer n1"), ("n1", "n2", "n3")),
    ],
    ids=["two name one", "one names one", "each names another"],
)
def test_transfers_failed_to_the_peer_that_several_hosts_name(text: str, hosts: tuple[str, ...]) -> None:
    assert tuple(sorted(_said(text).causes[0].hosts)) == hosts


def test_bridges_of_containers_may_differ() -> None:
    lines = ["n{0}: 3: docker0: <UP> mtu {1} qdisc", "n{0}: 1: lo: <LOOPBACK,UP> mtu {1} qdisc"]
    assert _first("\n".join(line.format(at, 1000 + at) for line in lines for at in (1, 2, 3))) == ""


def test_titles_between_marks_are_no_hosts() -> None:
    text = "=== Setup ===\na\n=== Results ===\nb\n==> train.1.log <==\nc\n==> train.2.log <==\nd"
    assert {line.host for line in lines_of(list(enumerate(text.split("\n"), 1)))} == {""}


def test_memory_that_runs_out_on_the_smaller_gpu_follows_from_the_difference() -> None:
    memory = "node-2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 3 has a total capacity of 39.39 GiB of which 612.06 MiB is free."
    gpus = "\n".join(
        f"node-{at}: GPU {gpu}: NVIDIA A100-SXM4-{size}GB (UUID: GPU-{at}{gpu})"
        for at, size in ((1, 80), (2, 40))
        for gpu in (0, 1)
    )
    assert _first(memory) == "gpu-memory-too-small"
    assert [cause.cause for cause in _said(f"{memory}\n{gpus}").causes] == [
        "hardware-differs-between-nodes",
        "gpu-memory-too-small",
    ]


def test_the_variable_by_which_a_node_takes_another_network() -> None:
    def node(name: str, said: str) -> str:
        return f"{name}:100:200 [0] NCCL INFO {said}"

    networks = [node("a1", "Using network IB"), node("a2", "Using network Socket")]
    assert (
        _first("\n".join([*networks, node("a2", "NCCL_IB_DISABLE set by environment to 1.")]))
        == "environment-differs-between-nodes"
    )
    both = [node(name, "NCCL_IB_DISABLE set by environment to 1.") for name in ("a1", "a2")]
    assert _first("\n".join([*networks, *both])) == "ib-driver-not-loaded"


HEAD = "    PID STAT %CPU COMMAND\n"


def test_a_process_that_is_stopped() -> None:
    found = _said(HEAD + " 220101 Rl    99.8 python train.py --rank 0\n 220103 Tl     0.0 python train.py --rank 2\n").causes[0]
    assert (found.cause, found.ranks) == ("rank-stopped", (2,))
    assert _first(HEAD + " 220101 Rl    99.8 python train.py --rank 0\n 220103 T      0.0 vim notes\n") == ""
    assert _first("USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND\nme          41  0.0  0.1   1000   500 pts/0    T    10:00   0:01 python3 x.py") == "rank-stopped"  # fmt: skip


THROTTLED = "GPU 00000000:41:00.0\n    Performance State                     : P2\n    Clocks Event Reasons\n        HW Slowdown                       : Active\n            HW Thermal Slowdown           : {state}\n"
LINKS = "GPU 6: NVIDIA A100-SXM4-80GB (UUID: GPU-1f2e3d4c-0000-0000-0000-000000000006)\n\t Link 0: 25 GB/s\n" + "".join(f"\t Link {at}: {{state}}\n" for at in range(1, 12))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "bad", "good", "cause"),
    [
        ("index, clocks_event_reasons.active\n0, 0x0000000000000000\n5, {state}\n", "0x0000000000000080", "0x0000000000000000", "gpu-thermal-throttle"),
        (LINKS, "<inactive>", "25 GB/s", "nvlink-inactive"),
    ],
)  # fmt: skip
def test_what_does_not_work_stands_for_itself(text: str, bad: str, good: str, cause: str) -> None:
    assert _first(text.format(state=bad)) == cause
    assert _first(text.format(state=good)) == ""


SET_ASIDE = (
    "This PR retries where the store says\n{error}",
    "## What's Changed\n* Handle {error} by @ab in #8831\n**Full Changelog**: v0.6.1...v0.6.2",
    "### 🚀 The feature, motivation and pitch\n\nA hint beside {error} would help.",
    "**Is your feature request related to a problem? Please describe.**\nSometimes there is\n{error}",
)


@pytest.mark.parametrize("text", SET_ASIDE)
def test_what_a_text_quotes_that_describes_a_change_is_told_though_nobody_is_accused(text: str) -> None:
    found = _said(text.format(error="OSError: [Errno 28] No space left on device"))
    assert found.causes == found.unexplained == ()
    assert "disk-full-or-quota" in found.unread[0].why
    assert _said(text.format(error="nothing")).unread == ()


def test_lines_with_heads_of_their_own_are_no_pieces_of_one() -> None:
    text = "n1:1:1 [0] NCCL INFO NCCL_PROTO set by environment to Simple.\nn2:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL128."
    assert _first(text) == "environment-differs-between-nodes"


ANSWERS = {
    "nvidia-smi --query-gpu=driver_version --format=csv,noheader": ("535.161.08", "550.54.15", "software-differs-between-nodes"),
    "python -c 'import torch; print(torch.__version__)'": ("2.4.0+cu121", "2.3.1+cu121", "software-differs-between-nodes"),
    "cat /sys/class/net/ib0/mtu": ("2044", "4092", "mtu-differs-between-nodes"),
    "printenv NCCL_IB_HCA": ("mlx5_0", "mlx5_1", "environment-differs-between-nodes"),
    "uptime": ("up 3 days", "up 4 days", ""),
}


@pytest.mark.parametrize("command", ANSWERS)
def test_what_hosts_answer_to_one_command(command: str) -> None:
    usual, odd, cause = ANSWERS[command]
    hosts = [f"n{at}: {odd if at == 3 else usual}" for at in range(1, 5)]
    assert _first("\n".join([f"$ clush -w n[1-4] {command}", *hosts])) == cause
    assert _first("\n".join(hosts)) == ""


WRITTEN = Path(__file__).with_name("written.txt")
HELD = ("sixth", "quoted", "walk")


def test_the_reports_that_were_open_to_mending_stay_right() -> None:
    """Those of the sealed part are measured, not held: docs/diagnose-measured.md."""
    reports = [each.split("\n", 1) for each in f"\n{WRITTEN.read_text()}".split("\n@@@ ")[1:]]
    told = {heading.split()[0]: (heading.split()[1:], _first(body) or "none") for heading, body in reports}
    wrong = {name: found for name, ((part, *causes), found) in told.items() if part in HELD and found not in causes}
    assert len(told) == 174
    assert wrong == {}
