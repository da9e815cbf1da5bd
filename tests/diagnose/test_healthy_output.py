"""What programs print where all is well, warnings among it: nothing is wrong; and the same warning where nothing went on afterwards."""

from __future__ import annotations

import pytest

from diagnose.test_kernel_logs import diagnosis_of

WITHOUT_VERBS = """\
n1:101:101 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory : when loading libnccl-net.so
n1:101:145 [0] NCCL INFO Failed to open libibverbs.so[.1]
n1:101:145 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
n1:101:145 [0] NCCL INFO NVLS multicast support is not available on dev 0
n1:101:145 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init COMPLETE
n1:101:150 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE
"""
RETRIES = """\
n2:101:145 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (1/34) after sleep for 100 msec
n2:101:145 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying (2/34) after sleep for 200 msec
n2:101:145 [0] NCCL INFO Connected all trees
"""
EARLY = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [h1]:29500 (errno: 111 - Connection refused). Retrying...\n"


INSTALLED = """\
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.
tensorboard 2.12.0 requires protobuf>=3.19.6, but you have protobuf 3.12.4 which is incompatible.
Successfully installed torch-2.5.1 triton-3.1.0
"""


@pytest.mark.parametrize(
    "text",
    [
        INSTALLED,
        WITHOUT_VERBS,
        RETRIES,
        EARLY + "{'loss': 1.1, 'epoch': 0.1}\n",
        EARLY + "epoch 1: 4.2it/s\n",
        "nccl.py:15: UserWarning: PyTorch is not compiled with NCCL support\nEpoch 1 loss 0.3\n",
        "Port 8501 is already in use\n",
        "Skipping corrupted image: invalid JPEG header in cat_12.jpg\nEpoch 1 loss 0.3\n",
        "mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 12)\nepoch 3: 120 samples/s\n",
    ],
)
def test_a_log_of_a_job_that_works_has_no_cause(text: str) -> None:
    told = diagnosis_of(text)
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (EARLY, "port-refused"),
        (RETRIES.replace("(2/", "(33/").replace("Connected all trees", "misc/socket.cc:560 -> 6"), "rank-killed"),
        (WITHOUT_VERBS + "it is slow over our two nodes\n", "ib-driver-not-loaded"),
        (WITHOUT_VERBS + "n1:101:101 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n", "ib-driver-not-loaded"),
    ],
)
def test_where_something_is_missed_it_is_the_cause(text: str, cause: str) -> None:
    assert [each.cause for each in diagnosis_of(text).causes][:1] == [cause]


CAUGHT = """\
Traceback (most recent call last):
  File "/app/fetch.py", line 12, in fetch
    response = session.get(url, timeout=5)
requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=5)
"""
BAD_IMAGE = """\
Traceback (most recent call last):
  File "/app/data.py", line 31, in load
    image = Image.open(path)
PIL.UnidentifiedImageError: cannot identify image file '/data/train/0412.jpg'
"""
STEPS = [
    "step 10 loss 3.1\nstep 20 loss 2.9\n",
    "{'loss': 1.2, 'epoch': 1}\n{'loss': 1.1, 'epoch': 2}\n",
    " 1%| | 1/90 [00:01]\n 2%| | 2/90 [00:02]\n",
]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("caught", [CAUGHT, BAD_IMAGE])
def test_an_exception_that_the_program_caught_is_no_error(caught: str, steps: str) -> None:
    told = diagnosis_of(f"{caught}retrying\n{steps}")
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    "after",
    [
        "",
        "step 1 loss 3\n",
        "Restarting worker group\nstep 1 loss 3\nstep 2 loss 2\n",
        "step 1 loss 3\nstep 2 loss 2\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        f"step 1 loss 3\nstep 2 loss 2\n{BAD_IMAGE}",
    ],
)
def test_one_that_ended_it_is_told(after: str) -> None:
    told = diagnosis_of(f"step 5 loss 4\n{BAD_IMAGE}{after}")
    assert told.unexplained


def test_a_fault_of_the_host_is_told_though_the_program_caught_it() -> None:
    text = CAUGHT.replace("requests.exceptions.ReadTimeout: ", "OSError: [Errno 28] No space left on device: '/ckpt/1.pt' ")
    assert [each.cause for each in diagnosis_of(text + STEPS[0]).causes] == ["disk-full-or-quota"]


LATE_STORE = """\
[E1127 21:43:53.012296815 socket.cpp:1028] [c10d] The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500).
[W1127 21:43:53.012795596 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host gpu-1:29500 - retrying (try=0, timeout=12000ms, delay=11133ms): The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500).
"""


def test_an_attempt_to_reach_rank_0_that_came_too_early_is_no_cause_once_the_job_trains() -> None:
    assert diagnosis_of(f"{LATE_STORE}step 0 loss 4.45 time 0.02 s\nstep 1 loss 4.41 time 0.02 s\n").causes == ()
    raised = "torch.distributed.DistNetworkError: The client socket has timed out after 12000ms while trying to connect to (gpu-1, 29500)."
    for text in (LATE_STORE, f"step 0 loss 4.45\n{LATE_STORE}{raised}\n"):
        assert diagnosis_of(text).causes[0].cause == "master-addr-wrong"


FAULTHANDLER = """\
Fatal Python error: Segmentation fault

Thread 0x00007eed1f5ff640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007eee1f5ff640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007eef1f5ff640 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/usr/lib/python3.12/site-packages/tqdm/_monitor.py", line 60 in run

Thread 0x00007efd95447640 (most recent call first):
  File "/usr/lib/python3.12/site-packages/torch/_inductor/compile_worker/subproc_pool.py", line 55 in _recv_msg

Current thread 0x00007f224c569280 (most recent call first):
  File "/opt/train/pynccl_wrapper.py", line 373 in ncclAllReduce
  File "/opt/train/parallel_state.py", line 117 in inplace_all_reduce
"""
P2P = "custom_all_reduce.py:145] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed."


@pytest.mark.parametrize(
    "text",
    [
        "I exceeded my quota as a free user of Kaggle, and my training notebook was stopped. I get no GPU.",
        "openai.RateLimitError: Error code: 429 - You exceeded your current quota, please check your plan and billing details. My training data script fails.",
        "Our wandb storage quota is exceeded, and artifacts of the model are refused with an error while I train.",
        "My job to push the checkpoint fails with 403 Forbidden: Private repository storage limit reached.",
        "RuntimeError: CUDA error: an illegal instruction was encountered\nI run torch 2.5.",
        "How can I install the CPU only version of torch to keep my image small? pip install torch downloads 2 GB of CUDA libraries.",
        "AssertionError: Torch not compiled with CUDA enabled appears in the test on my Mac.",
        "We plan to support hosts where the disk is nearly full, by writing the checkpoints to S3.",
        "Which GPU should I buy to train SDXL? I have an RTX 3060 and I heard that VRAM is often too small.",
        f"I train with 4 GPUs.\nWARNING 03-12 16:53:28 {P2P}\nAttributeError: 'Gemma3Config' object has no attribute 'vocab_size'",
        "I run this on two GPUs with slurm. The server crashes with a clearer error message then: KeyError: 'x'",
        "[2025-06-24 08:54:27] Scheduler hit an exception: Traceback (most recent call last):\nKeyError: 'x'\nKilled",
        "Why is it slow? I train on a GPU with my data loader.\ncommon_init_from_params: warming up the model with an empty run - please wait ...",
        FAULTHANDLER,
    ],
)
def test_what_reports_no_fault_of_this_host_accuses_none(text: str) -> None:
    """A service's limit, a wish, a question, another system, a log's line in a report, threads of one process."""
    assert [each.cause for each in diagnosis_of(text).causes] == []


SPILLED = """\
(raylet) Spilled 2048 MiB, 12 objects, write throughput 900 MiB/s. Set RAY_verbose_spill_logs=0 to disable this message.
Training completed after 10 iterations at 2025-01-01 01:00:00.
"""
WARNED = """\
/p/torchvision/io/image.py:13: UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared object file'
Accuracy: 93.1
"""
NOT_READY = """\
  Normal   Pulled     3h               kubelet  Successfully pulled image "x" in 41s
  Warning  Unhealthy  3h (x2 over 3h)  kubelet  Readiness probe failed: connection refused
"""
RESUMED = """\
Error while downloading from https://cdn-lfs.huggingface.co/x: HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Read timed out.
Trying to resume download...
model-00001-of-00004.safetensors: 100%|##########| 4.98G/4.98G [03:11<00:00, 26.1MB/s]
"""
CODE = """\
Is this good style?
    if "CUDA out of memory" in str(error):
    with pytest.raises(RuntimeError, match="Address already in use"):
        init()
    assert "No space left on device" in output
"""
SCRIPT = """\
if grep -q "CUDA error" "$log"; then
elif grep -q "No space left on device" "$log"; then
  echo "disk full"
fi
  ENOSPC: "No space left on device",
  EADDRINUSE: "Address already in use",
"""
TABLE = """\
| Error | Cause | Fix |
|---|---|---|
| CUDA out of memory | batch too large | reduce batch |
| No space left on device | disk full | clean up |
"""
ALERT = """\
annotations:
  summary: "GPU has fallen off the bus or another Xid on {{ $labels.instance }}"
"""
PASSED = """\
tests/test_errors.py::test_message[NCCL error: unhandled system error] PASSED
tests/test_errors.py::test_message[No space left on device] PASSED      [ 66%]
test_full_disk ("No space left on device") ... ok
"""
ASKED = "What happens if /dev/shm is too small, and how does NCCL choose its network interface? I want to write it down."
COMPARED = "What is the difference between a stale file handle and an input/output error?"
WISHED = "It would be nice if the trainer printed a hint when /dev/shm is full."
ADVISED = 'To avoid "Address already in use" pass --master_port. That is all you need, enjoy!'


@pytest.mark.parametrize(
    "text", [SPILLED, WARNED, NOT_READY, RESUMED, CODE, SCRIPT, TABLE, ALERT, PASSED, ASKED, WISHED, ADVISED, COMPARED]
)
def test_what_is_warned_tried_again_quoted_or_asked_is_no_fault(text: str) -> None:
    told = diagnosis_of(text)
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (RESUMED.replace("100%", " 41%"), "index-unreachable"),
        (f"{RESUMED}\nTraceback (most recent call last):\nOSError: Read timed out", "index-unreachable"),
        ("RuntimeError: Address already in use", "master-port-in-use"),
        ("| node | says |\n| n1 | No space left on device |", "disk-full-or-quota"),
        (PASSED.replace(" PASSED      [ 66%]", " FAILED"), "disk-full-or-quota"),
        ("Training fails with a bus error when /dev/shm is full.", "dev-shm-too-small"),
    ],
)
def test_what_was_not_mended_by_itself_is_told(text: str, cause: str) -> None:
    assert [each.cause for each in diagnosis_of(text).causes][:1] == [cause]


RELEASE = """\
## [1.4.0] - 2026-03-02
### Fixed
- loaders that died with "Too many open files" are started again
- `No space left on device` names the file
"""
NODE = """\
  DiskPressure     False   KubeletHasNoDiskPressure     kubelet has no disk pressure
  Ready            True    KubeletReady                 kubelet is posting ready status
"""
REVIEWED = """\
> +    if free < need:
> +        raise OSError("No space left on device")
Should this not carry an errno?
"""
CLASSIFIED = 'def kind(line):\n    if "Driver/library version mismatch" in line:\n        return "driver"\n'
DOCUMENT = "Please document what nvidia-smi means by Driver/library version mismatch."
PLAYED = """\
ansible-playbook -i hosts site.yml --limit gpu
TASK [driver : stop services that use the GPU] ********* changed: [gpu01]
TASK [driver : reboot] ********************************* changed: [gpu01]
PLAY RECAP
gpu01 : ok=14 changed=6 unreachable=0 failed=0 skipped=2 rescued=0 ignored=0
"""
FAQ = "# FAQs\n\nThe out-of-memory error during training is usually due to insufficient memory of the GPU.\n"
RUNBOOK = (
    "Runbook: reload the driver\nRun this when nvidia-smi prints Failed to initialize NVML: Driver/library version mismatch.\n"
)
ARTICLE = (
    "Xid 79 means that the GPU fell off the bus. When this hits your training at step 47,000, you lose the run, and you pay for it twice. The schedule of the whole team moves by a day.\n"
    "A GPU seldom fails at once. The counters which you collect already show it hours before: corrected errors grow, and your links train again. Nobody looks at them, as long as jobs run.\n"
)
CONDITIONS = """\
  - {type: DiskPressure, status: "False", reason: KubeletHasNoDiskPressure}
  - type: DiskPressure
    status: "False"
"""
INSPECTED = """\
            "OOMKilled": false,
            "Dead": false,
            "Error": ""
        "HostConfig": { "ShmSize": 68719476736, "OomKillDisable": false }
"""
COUNTED = "OK: swap 0 % used, 0 zombie processes, 0 OOM kills, GPUs 8/8 healthy | oom=0"
ALIVE = "Ray cluster status: 16 nodes alive, 0 dead; no pending demands"
LISTED = """\
ERRORS = {
    28: ("ENOSPC", "No space left on device"),
    24: ("EMFILE", "Too many open files"),
}
    case 79: return "GPU has fallen off the bus";
msgid "No space left on device"
assertThat(log).contains("RuntimeError: CUDA error: out of memory");
"""
EXERCISE = "Translate the following messages into Spanish:\n1. Connection refused\n2. No space left on device\n"
WELL = (CONDITIONS, INSPECTED, COUNTED, ALIVE, LISTED, EXERCISE)


@pytest.mark.parametrize("text", [*WELL, RELEASE, NODE, REVIEWED, CLASSIFIED, DOCUMENT, PLAYED, FAQ, RUNBOOK, ARTICLE])
def test_what_is_written_for_readers_or_says_that_all_is_well_is_no_fault(text: str) -> None:
    assert diagnosis_of(text).causes == ()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (NODE.replace("False   KubeletHasNoDiskPressure", "True    KubeletHasDiskPressure"), "disk-full-or-quota"),
        (
            "# Use of the RTX 5090\nRuntimeError: CUDA error: no kernel image is available for execution on the device",
            "gpu-arch-not-in-wheel",
        ),
        ("# Support for ROCm 7\nRuntimeError: HIP error: invalid device function", "rocm-gpu-arch-not-in-wheel"),
        ("I run nvidia-smi and get Driver/library version mismatch", "nvml-driver-library-mismatch"),
        ("node1:26:28 [0] misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed", "memlock-limit-too-low"),
        ("My run ends at epoch 500 with an error: too many files open", "nofile-limit-too-low"),
        ("ImportError: flash_attn_2_cuda undefined symbol with torch 2.6", "extension-torch-abi-mismatch"),
        ("训练终止后其他卡仍在占用显存，报错", "gpu-memory-in-use"),
        ("微调启动后被 killed，没有报错", "host-memory-oom"),
    ],
)
def test_a_report_is_one_though_its_title_reads_like_a_change(text: str, cause: str) -> None:
    assert [each.cause for each in diagnosis_of(text).causes][:1] == [cause]


_WARNED = (
    "/opt/lib/python3.11/site-packages/trainer/{}.py:3061: FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value), which uses the "
    "default pickle module implicitly. It is possible to construct malicious pickle data. In a future release, the default value will be flipped.\n"
)
_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free.\n"
_LOST = "[ 8123.401229] NVRM: Xid (PCI:0000:1b:00): 79, pid=4411, name=python, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (_WARNED.format("io") + _WARNED.format("sched") + _FULL, "gpu-memory-too-small"),
        (_WARNED.format("io") + _WARNED.format("sched") + _LOST, "gpu-fallen-off-bus"),
        ("PLAYBOOK: train.yml ***************\nTASK [run training] *****\n" + _FULL, "gpu-memory-too-small"),
        ("Runbook step 4 done on gpu07, the GPU is still gone:\n" + _LOST, "gpu-fallen-off-bus"),
        ("FAQ did not help, training still fails:\n" + _FULL, "gpu-memory-too-small"),
        ("The following section shows the log of rank 3:\n" + _FULL, "gpu-memory-too-small"),
        ("PyTorch 2.4.1:\n- 2 nodes, 8 x H100\n- torchrun, NCCL 2.20.5\n\n" + _FULL, "gpu-memory-too-small"),
        ("Training fails with this change of my configuration:\n> +    batch_size: 16\n" + _FULL, "gpu-memory-too-small"),
        ("NCCL job on the cluster failed: on node 0 memlock limit is too low (64 KB)\n", "memlock-limit-too-low"),
    ],
)
def test_words_of_documents_and_of_changes_silence_no_failure_beside_them(text: str, cause: str) -> None:
    assert [found.cause for found in diagnosis_of(text).causes][:1] == [cause]
