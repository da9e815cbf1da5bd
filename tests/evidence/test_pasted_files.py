"""Files of a host that a paste shows, and what ulimit, free, mount and docker inspect print beside them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys import engine
from torchtune_sys.cli.options import NO_INTENT
from torchtune_sys.cli.take_snapshot import look
from torchtune_sys.errors import UserError
from torchtune_sys.evidence import free_memory, pasted_files
from torchtune_sys.evidence.limits import limits_facts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import CATALOGUE

RELEASE = (
    'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n'
)
UNAME = "Linux n1 6.8.0-45-generic #45-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 30 12:02:04 UTC 2024 x86_64 x86_64 x86_64 GNU/Linux\n"


def seen(text: str, intent: Workload | None = None) -> Snapshot:
    found = engine.report(text, "report", intent)
    assert found is not None
    return found


def verdicts(text: str, intent: Workload | None = None) -> dict[str, Verdict]:
    return {result.rule.id: result.verdict for result in engine.judge(seen(text, intent), CATALOGUE)}


@pytest.mark.parametrize(
    "text",
    [
        "$ cat /etc/os-release\n" + RELEASE + "\n",
        "root@n1:~# cat /etc/os-release\n" + RELEASE + "root@n1:~# ls\n",
        "==> /etc/os-release <==\n" + RELEASE,
        "18. OS release\nFrom /etc/*-release /etc/*-version\nos-release " + RELEASE.partition("\n")[0] + "\n" + RELEASE,
        RELEASE,
    ],
)
def test_the_distribution_is_read_wherever_its_file_is_shown(text: str) -> None:
    system = seen(text + "\n" + UNAME).system
    assert not isinstance(system, Missing)
    assert not isinstance(system.os, Missing)
    assert (system.os.id, system.os.version, system.os.codename) == ("ubuntu", "24.04", "noble")
    assert (system.kernel, system.machine) == ("6.8.0-45-generic", "x86_64")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("$ cat /sys/kernel/mm/transparent_hugepage/enabled\nalways madvise [never]\n", "thp-never"),
        ("16. /sys/kernel/mm/transparent_hugepage\nalways madvise [never]\n---------------\n", "thp-never"),
        ("/sys/kernel/mm/transparent_hugepage/enabled:always madvise [never]\n", "thp-never"),
        ("$ cat /proc/sys/vm/overcommit_memory\n2\n", "overcommit-strict"),
        ("+ cat /proc/sys/vm/max_map_count\n2000\n", "max-map-count-low"),
        (
            "$ ulimit -a\nfile size               (blocks, -f) 2048\nopen files                      (-n) 1024\n",
            "file-size-limit",
        ),
        ("% ulimit -a\n-f: file size (blocks)              4096\n-n: file descriptors                1024\n", "file-size-limit"),
    ],
)
def test_a_value_that_a_paste_shows_is_judged(text: str, rule: str) -> None:
    assert verdicts(text)[rule] is Verdict.FAIL


@pytest.mark.parametrize(
    "failed",
    [
        "UCX  ERROR mlx5_0: mlx5dv_devx_umem_reg(size=131072 access=0x0) failed: Cannot allocate memory\n",
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n",
        "",
    ],
)
def test_what_ucx_says_of_the_limit_is_enough(failed: str) -> None:
    words = "allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 8192 kbytes)\n"
    assert verdicts(words + failed)["memlock-limit-too-low"] is Verdict.FAIL


def test_a_soft_limit_on_open_files_tells_of_the_hard_one_only_where_it_is_high() -> None:
    assert (
        verdicts("$ ulimit -a\nopen files                      (-n) 1024\nfile size  (blocks, -f) unlimited\n")[
            "nofile-limit-too-low"
        ]
        is Verdict.UNKNOWN
    )
    assert verdicts("$ ulimit -a\nopen files                      (-n) 1048576\n")["nofile-limit-too-low"] is Verdict.PASS


def test_what_two_nodes_show_differently_is_left_out() -> None:
    both = "n1$ cat /proc/sys/vm/overcommit_memory\n2\nn2$ cat /proc/sys/vm/overcommit_memory\n0\n"
    assert pasted_files.files(both) == {}


@pytest.mark.parametrize(
    "text",
    [
        "The value of /proc/sys/vm/overcommit_memory matters here.\n2\n",
        "see /sys/kernel/mm/transparent_hugepage/enabled\n",
        "# /etc/sysctl.d/90-x.conf\nvm.overcommit_memory = 2\n",
        "$ cat /proc/meminfo | grep Huge\nHugePages_Total: 0\n",
        "$ cat /etc/shadow\nroot:x\n",
    ],
)
def test_a_path_in_a_sentence_and_a_part_of_a_file_are_no_file(text: str) -> None:
    assert pasted_files.files(text) == {}


def test_a_boot_argument_that_looks_like_a_secret_is_not_kept() -> None:
    system = seen("$ cat /proc/cmdline\nBOOT_IMAGE=/vmlinuz root=/dev/sda1 ro ds=nocloud;password=hunter2 iommu=pt\n").system
    assert not isinstance(system, Missing)
    assert "iommu=pt" in system.cmdline  # type: ignore[operator]
    assert "hunter2" not in str(system.cmdline)


def test_free_tells_memory_where_its_unit_is_known() -> None:
    table = "               total        used        free      shared  buff/cache   available\nMem:       {}\nSwap:      {}\n"
    high = table.format("503Gi  11Gi  440Gi  1.0Gi  52Gi  488Gi", "8.0Gi  0B  8.0Gi")
    memory = seen(high).memory
    assert not isinstance(memory, Missing)
    assert memory.total_bytes == 503 << 30
    bare = table.format("515000  11000  440000  1000  52000  488000", "0  0  0")
    in_mib = seen("$ free -m\n" + bare).memory
    assert not isinstance(in_mib, Missing)
    assert in_mib.total_bytes == 515000 << 20
    also_total = seen("$ free -mt\n" + bare).memory
    assert not isinstance(also_total, Missing)
    assert also_total.total_bytes == 515000 << 20
    untold = engine.report(bare, "report")
    assert untold is None or isinstance(untold.memory, Missing) or isinstance(untold.memory.total_bytes, Missing)


@pytest.mark.parametrize(
    "line",
    [
        "/dev/nvme0n1p2 on /ckpt type ext4 (ro,relatime,errors=remount-ro)",
        "/dev/nvme0n1p2 /ckpt ext4 ro,relatime,errors=remount-ro 0 0",
    ],
)
def test_mount_and_the_mount_table_tell_what_carries_a_path(line: str) -> None:
    assert verdicts(line + "\n", Workload(checkpoints=("/ckpt",)))["checkpoints-not-writable"] is Verdict.FAIL


@pytest.mark.parametrize(
    "line",
    [
        "/home/azure/venvs/vllm-wjh/lib/python3.12/site-packages/torch/cuda/__init__.py:283: UserWarning: /proc/cmdline",
        "user@host:~/a/b/c" * 100 + " cat /proc/",
        "a b " * 500 + "(kbytes, -",
        " " * 2000 + "total",
        "A_B=c /etc/",
        "Linux a 5.1 #1 " + "x86_64 " * 60,
    ],
)
def test_lines_that_are_nearly_a_file_take_no_time(line: str) -> None:
    started = time.process_time()
    pasted_files.recording(f"{line}\n" * 2000)
    limits_facts(f"{line}\n" * 2000)
    free_memory.memory_facts(f"{line}\n" * 2000 + "Swap:")
    assert time.process_time() - started < 3


PIECES = (
    "$ cat /proc/cmdline\n", "==> /proc/self/limits <==\n", "/proc/sys/vm/swappiness:", "# cat /etc/os-release\n", "ID=", "PRETTY_NAME=", "Linux n1 6.8.0 #1 SMP x86_64 GNU/Linux\n",
    " total used free shared buff/cache available\n", "Mem: ", "Swap: ", "free -m\n", "12Gi ", "(kbytes, -l) ", "(-n) ", "unlimited\n", "ulimit -n\n", "-f: file size (blocks) ",
    '"HostConfig": ', '{"ShmSize": 5, "CpusetCpus": "5-3", "NanoCpus": true, "Ulimits": [{"Name": "nofile", "Soft": "x", "Hard": null}, 3]}', "{", "}", '"CpusetCpus": "0-99999"', "tmpfs on /dev/shm type tmpfs (rw)\n",
    "Max locked memory 1 2 bytes\n", "1", "\n", "/dev/sda1 / ext4 rw 0 0\n", "always [madvise] never\n", "BOOT_IMAGE=/v root=x\n", "Linux version 6 (x)\n", "x" * 50,
)  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=14))
@settings(max_examples=150, deadline=None)
def test_no_paste_raises(pieces: list[str]) -> None:
    found = engine.report("".join(pieces), "report")
    assert found is None or not [result for result in engine.judge(found, CATALOGUE) if result.verdict is Verdict.CRASHED]


CONTAINER = '[{"Id": "b3", "HostConfig": {"ShmSize": 67108864, "IpcMode": "%s", "Memory": 8589934592, "NanoCpus": 2000000000, "Ulimits": null}}]'


def test_docker_inspect_tells_how_a_container_was_started() -> None:
    assert verdicts(CONTAINER % "private", Workload(workers=8))["dev-shm-too-small"] is Verdict.FAIL
    assert verdicts(CONTAINER % "host", Workload(workers=8))["dev-shm-too-small"] is Verdict.UNKNOWN
    found = seen(CONTAINER % "private")
    assert not isinstance(found.cpu, Missing)
    assert found.cpu.quota == 2.0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Conditions:\n  Ready   True   KubeletReady   kubelet is posting ready status\n", "kubectl describe node"),
        ("====== ROCm System Management Interface ======\n", "rocm-smi without a GPU"),
        ("pci/0000:0d:00.0:\n  driver mlx5_core\n", "devlink"),
        (
            "eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9001\n        inet 10.0.0.7  netmask 255.255.255.0\n",
            "ifconfig",
        ),
        ("docker0   Link encap:Ethernet  HWaddr 02:42:a9:9e:3d:33\n          inet addr:172.17.0.1\n", "ifconfig"),
        ("lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536\n        inet 127.0.0.1\n", "ifconfig"),
    ],
)
def test_what_is_not_read_is_named(text: str, named: str, tmp_path: object) -> None:
    file = f"{tmp_path}/paste.txt"
    with open(file, "w") as out:
        out.write(text)
    with pytest.raises(UserError, match=named):
        look({**NO_INTENT, "from_": file, "root": None, "timeout": None})


def test_a_probe_that_raises_costs_its_own_facts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a paste are read by the probes of five families."""
    from torchtune_sys.model.values import Why
    from torchtune_sys.probes import PROBES

    def broken(*_: object) -> None:
        raise ValueError("unlike any host")

    text = "$ cat /proc/sys/vm/swappiness\n60\n\n$ cat /sys/devices/system/cpu/online\n0-7\n\nLinux n1 5.15.0-94-generic #104-Ubuntu SMP Tue Jan 9 15:25:40 UTC 2024 x86_64 x86_64 x86_64 GNU/Linux\n"
    monkeypatch.setitem(PROBES, "cpu", broken)
    seen = engine.report(text, "test")
    assert seen is not None and isinstance(seen.cpu, Missing) and seen.cpu.why is Why.CRASHED
    assert not isinstance(seen.sysctl, Missing) and not isinstance(seen.system, Missing)
    assert (seen.sysctl.settings["vm.swappiness"].running, seen.system.kernel) == ("60", "5.15.0-94-generic")
