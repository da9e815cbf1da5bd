"""``ls -l /dev/nvidia*`` and ``df -i`` in a paste: read where they tell all, and left where they tell a part."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.driver import device_nodes
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing

GPU = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaaaaaa-0000-0000-0000-000000000000)\n"
LS = "$ ls -l /dev/nvidia*\n"
CONTROL = "crw-rw-rw- 1 root root 195, 255 Nov 20 10:11 /dev/nvidiactl\n"
FIRST = "crw-rw-rw- 1 root root 195,   0 Nov 20 10:11 /dev/nvidia0\n"
UVM = "crw-rw-rw-. 1 root root 511, 0 Nov 20  2025 /dev/nvidia-uvm\n"


def read(text: str) -> Snapshot:
    found = evidence.read(text, "paste")
    assert found is not None
    return found


def nodes(text: str) -> Any:
    return {node.path: node for node in device_nodes(text).get("device_nodes", ())}


def test_each_node_has_its_numbers_and_who_may_open_it() -> None:
    found = nodes(LS + FIRST + CONTROL + UVM)
    assert [(node.device, node.driver_device) for node in found.values()] == [
        ("511:0", ""),
        ("195:0", "195:0"),
        ("195:255", "195:255"),
    ]
    assert all(node.accessible is True and node.mode == 0o666 for node in found.values())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FIRST, False),  # one of them: whether the others are there is not told
        (LS + FIRST, True),
        (FIRST + CONTROL, True),
        (LS + FIRST.replace("root root", "root video"), False),  # a number that the paste does not tell
        (LS + "ls: cannot access '/dev/nvidia*': No such file or directory\n", True),
        ("crw-rw---- 1 root root 226, 128 Nov 20 10:11 /dev/dri/renderD128\n", False),
    ],
)
def test_all_of_them_or_nothing(text: str, told: bool) -> None:
    assert bool(device_nodes(text)) is told


def test_a_node_of_the_group_depends_on_who_the_user_is() -> None:
    closed = nodes(LS + FIRST.replace("crw-rw-rw-", "crw-rw----") + CONTROL.replace("crw-rw-rw-", "crw-rw-rw-+"))
    assert all(isinstance(node.accessible, Missing) for node in closed.values())


def test_a_node_of_another_number_is_told_and_a_right_one_is_not() -> None:
    wrong = judge(read(LS + FIRST.replace("195,   0", "195,   7") + CONTROL + GPU))["device-file-broken"]
    assert wrong.verdict.value == "fail" and wrong.evidence[0].subject == "/dev/nvidia0"
    right = judge(read(LS + FIRST + CONTROL + UVM + GPU))
    assert not [rule for rule, result in right.items() if result.verdict.value == "fail"]


DF = """$ df -i
Filesystem       Inodes   IUsed    IFree IUse% Mounted on
/dev/nvme0n1p2 62513152 {used} {free}  {share}% /
tmpfs          33012345       4 33012341    1% /dev/shm
"""


@pytest.mark.parametrize(("free", "failing"), [(0, {"inodes-exhausted"}), (60_000_000, set())])
def test_inodes_that_are_used_up(free: int, failing: set[str]) -> None:
    results = judge(read(DF.format(used=62513152 - free, free=free, share=50)))
    assert {rule for rule, result in results.items() if result.verdict.value == "fail"} == failing


@pytest.mark.parametrize("text", [DF.format(used=1, free=2, share=1), "$ df -i | grep shm\ntmpfs 4096 4 4092 1% /dev/shm\n"])
def test_a_count_of_inodes_is_no_size(text: str) -> None:
    found = evidence.read(text, "paste")
    memory = None if found is None else found.memory
    assert not isinstance(memory, MemoryFacts) or isinstance(memory.shm_size_bytes, Missing)


def test_sizes_and_inodes_of_one_mount_go_together() -> None:
    sizes = "$ df -h\nFilesystem Size Used Avail Use% Mounted on\n/dev/nvme0n1p2 938G 100G 791G 12% /\n"
    found = read(sizes + DF.format(used=62513152, free=0, share=100))
    assert not isinstance(found.storage, Missing)
    (root,) = found.storage.places
    assert (root.inodes_free, root.free_bytes) == (0, 791 << 30)
