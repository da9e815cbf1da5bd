"""What is over, what a test wanted, what is only listed, and what somebody did by himself accuses nobody; beside them, the same words where something is wrong."""

from __future__ import annotations

import pytest

from diagnose.test_forms import judged

PULLED = """  Warning  Failed   12m  kubelet  Failed to pull image "x/y:1": rpc error: code = Unknown desc = 429 Too Many Requests
  Normal   Started  10m  kubelet  Started container t
"""
WAITED = """9d  Warning  FailedScheduling  pod/train-0  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.
9d  Normal   Scheduled         pod/{name}  Successfully assigned ml/{name} to gpu-3
"""
CANCELLED = "slurmstepd: error: *** JOB 99213 ON gpu02 CANCELLED AT 2025-10-02T09:00:12 ***"
NPU = """Traceback (most recent call last):
  File "{path}/torch_npu/__init__.py", line 14, in <module>
    import torch_npu.npu
  File "{path}/torch_npu/npu/utils.py", line 11, in <module>
    import torch_npu._C
ModuleNotFoundError: No module named 'torch_npu._C'
"""


def named(text: str) -> list[str]:
    return [each.cause for each in judged(text.encode()).causes]


@pytest.mark.parametrize(
    "text",
    [
        'Postmortem: node gpu-22 had "Xid 79, GPU has fallen off the bus". Riser replaced, burn-in passed. No action required.',
        '[Resolved] the outage of the Lustre servers this morning: "Stale file handle" in jobs that ran at that time.',
        "tests/test_a.py::test_bus XFAIL (RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error.)\n== 1 xfailed in 8s ==",
        "SKIPPED [4] tests/test_gpu.py:12: Found no NVIDIA driver on your system",
        "--- PASS: TestNodeLost (0.02s)\n    node_test.go:41: got expected error: NCCL WARN Call to connect returned Connection refused",
        "Error was raised as expected: torch.cuda.OutOfMemoryError: CUDA out of memory.",
        'export const REASONS = ["CrashLoopBackOff", "ImagePullBackOff", "OOMKilled", "Evicted"];',
        "pod states we handle: CrashLoopBackOff, ImagePullBackOff, ErrImagePull, Evicted, OOMKilled and NodeLost.",
        "## Known issues\n* `RuntimeError: Address already in use`: pick another port",
        "## When it hangs\n1. Look for `NCCL WARN Net : Connection refused` in the logs. It means the peer has died.\n2. If you see `No space left on device`, raise --shm-size.",
        "Is torch 2.4 fine with driver 570? I read that an old driver gives `The NVIDIA driver on your system is too old`.",
        f"{CANCELLED}\nThat was me (scancel), wrong learning rate.",
        f"I pressed ctrl-c because I saw the wrong config:\n{CANCELLED}",
        f"$ kubectl describe pod t-0\n{PULLED}",
        WAITED.format(name="train-0"),
        "[cherry-pick] NCCL 在共享内存不足时给出更清楚的报错\n\nDocker 默认的共享内存是 64MB。这个 PR 给出原因。\n\nPR types: Others",
        "PR: add ImagePullBackOff to the troubleshooting page",
        "# CUDA out-of-memory message is hard to understand",
    ],
)
def test_nobody_is_accused(text: str) -> None:
    assert named(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            'Since Sunday gpu-22 logs "Xid 79, GPU has fallen off the bus" again, although the riser was replaced.',
            "gpu-fallen-off-bus",
        ),
        (
            "tests/test_a.py::test_bus FAILED\nRuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error.",
            "dev-shm-too-small",
        ),
        (
            "It does not work as expected: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",
            "dev-shm-too-small",
        ),
        (f"{CANCELLED}\nNobody of us did that.", "job-preempted"),
        (WAITED.format(name="other-1"), "kubernetes-gpu-unavailable"),
        (NPU.format(path="/data/src/pytorch"), "torch-shadowed"),
        ("Our pod is Evicted, then OOMKilled. We see it every day.", "host-memory-oom"),
    ],
)
def test_the_same_words_of_what_is_wrong_still_name_it(text: str, cause: str) -> None:
    assert named(text)[:1] == [cause]


def test_a_package_in_site_packages_is_not_hidden_by_its_sources() -> None:
    assert named(NPU.format(path="/usr/lib/python3/site-packages")) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("enroot-nsenter: failed to create user namespace: Operation not permitted", "user-namespaces-blocked"),
        ("bwrap: setting up uid map: Permission denied", "user-namespaces-blocked"),
        ("nvidia-gridd: Valid GRID license not found. GPU features and performance will be restricted.", "gpu-license-missing"),
        ("        License Status                    : Unlicensed (Restricted)", "gpu-license-missing"),
        ("FAILED: build/temp/x.o\nKilled\nninja: build stopped: subcommand failed.", "host-memory-oom"),
        ("make[2]: *** [CMakeFiles/x.dir/build.make:76: x.o] Killed", "host-memory-oom"),
        (
            "LustreError: 11-0: scratch-OST0003-osc: operation ost_write to node 10.1.1.2@o2ib failed: rc = -28",
            "disk-full-or-quota",
        ),
        ("LustreError: 12:0:(file.c:4310:ll_fsync()) scratch: fsync error: rc = -5", "storage-io-error"),
        ('gfx10: Failed to load firmware "amdgpu/navi10_pfp.bin"', "amdgpu-not-loaded"),
        ("OSError: [Errno 8] Exec format error: '/opt/bin/nvcc'", "program-for-other-architecture"),
        ("ImportError: foo_transport.so: cannot open shared object file: No such file or directory", "system-library-missing"),
        (
            "RuntimeError: The client socket has failed to connect to any network address of (bun003, 9901). The client socket has failed to connect to bun003.admin:9901 (errno: 113 - No route to host).",
            "master-addr-wrong",
        ),
        (
            "    store = TCPStore(result.hostname, result.port, world_size, start_daemon)\nRuntimeError: No route to host",
            "firewall-blocks-nccl",
        ),
        ("Reason=gres/gpu count reported lower than configured (7 < 8)", "node-below-slurm-config"),
        ("I always get a CUDA out-of-memory error on my 24 GB card, with batch size 1.", "gpu-memory-too-small"),
        ("pip install torch==1.8 on python 3.12 says no matching distribution", "no-wheel-for-python"),
        ("I can't ssh from node1 to node2 without a password, and mpirun asks for one and then hangs.", "ssh-login-fails"),
        ("The scheduler kills my job after exactly 24 hours.", "job-time-limit"),
        ("Two of the eight GPUs don't show up in nvidia-smi any more since the power outage.", "gpu-fallen-off-bus"),
        ("My 3090 drops to PCIe x1 after some minutes, and everything is 10 times slower.", "gpu-pcie-link-degraded"),
        (
            "Our training container runs as uid 1000780000 in OpenShift, and torch complains about getpwuid.",
            "container-uid-without-passwd",
        ),
        ("torch.save to the NFS home takes 20 minutes, and the GPUs sit idle meanwhile.", "slow-data-storage"),
        ("The node rebooted itself during our run.", "node-lost"),
        ("The system clocks have diverged: these nodes are off by minutes, and Slurm turns them away.", "clock-skew"),
    ],
)
def test_messages_and_complaints_beside_those_that_were_known(text: str, cause: str) -> None:
    assert named(text)[:1] == [cause]
