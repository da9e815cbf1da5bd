"""What people tell of their host without calling it the cause: possible, where nothing else names one; not what is denied, advised, asked for or a condition."""

from __future__ import annotations

import io
import time

import pytest

from torchtune_sys.diagnosis import stated_causes, stated_forms, told_states
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.text.lines import LogLine, lines_of
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.causes import cause_rows


def _named(text: str) -> list[str]:
    lines = {"x": lines_of(enumerate(text.split("\n"), 1))}
    return [candidate.cause for symptom in told_states.symptoms_of(lines) for candidate in symptom.candidates]


TOLD = [
    ("The loss becomes NaN with certain pairs of GPUs. Training on a single GPU works fine.", "geforce-p2p-broken"),
    ("With two nodes the run gets stuck at init_process_group for 30 minutes.", "node-never-came"),
    ("The nvidia module finds no card. Nouveau appears not to be disabled on my machine.", "nouveau-loaded"),
    ("Hello, all nodes are down. My jobs in the cluster wait.", "node-lost"),
    ("My cancelled jobs stay in CG in squeue for hours.", "node-lost"),
    ("Since noon my jobs do not start: reads on the OSTs failed or timed out on both nodes.", "hung-mount"),
    ("Our GPU is throttling at 60 °C although the fans are fine.", "gpu-thermal-throttle"),
    ("My job was cancelled due to the time limit of the partition; can it go on from the last checkpoint?", "job-time-limit"),
    ("I install it with pip, but pip keeps timing out after 15 seconds.", "index-unreachable"),
    ("Our compute node has no internet access and the script hangs when it downloads the model.", "index-unreachable"),
    ("Fine-tuning is very slow for me: it was using PCIe (PHB) rather than NVLINK.", "nvlink-inactive"),
    (
        "The update of my kernel broke: the DKMS module for the nvidia driver fails to build.",
        "nvidia-module-not-built-for-kernel",
    ),
    ("I train on a larger data set now and have a problem of getting killed suddenly.", "host-memory-oom"),
    ("My training gets slower and slower. htop says the swap is nearly full.", "host-memory-oom"),
    ("After two epochs my machine starts swapping and everything crawls.", "host-memory-oom"),
    ("The script was suddenly killed while loading the dataset, I see no traceback.", "host-memory-oom"),
    ("I train on images that lie on a network share and each epoch takes hours, it is so slow.", "slow-data-storage"),
    ("Why is the GPU utilization so low during training? The images are large.", "slow-data-storage"),
    ("During training my GPU is idle most of the time and waits for the next batch.", "slow-data-storage"),
    ("I guess the data loading is the bottleneck: training uses 8 GPUs.", "slow-data-storage"),
    ("It trains fine at first, then my GPU overheats and each step becomes slow.", "gpu-thermal-throttle"),
    ("My GPU gets lost under load. I suspect the power supply is too weak.", "gpu-fallen-off-bus"),
    ("Training on two nodes is much slower than on one node for us.", "straggler-network"),
    (
        "We train with DDP on multiple machines and the speed is bad. I think our 1 Gbit network is the bottleneck.",
        "straggler-network",
    ),
    ("I cannot build the CUDA extension, maybe my gcc is too new.", "host-compiler-too-new"),
    ("The extension does not compile for me, the default gcc on our cluster is too old.", "host-compiler-too-old"),
    ("I compile apex for torch, but my nvcc has a different version than torch: a mismatch.", "nvcc-torch-cuda-mismatch"),
    ("The wheel does not import on our cluster, its glibc is older than what the wheel wants.", "glibc-too-old"),
    ("I cannot import torch in my conda env, libstdc++ of the system is too old.", "libstdcxx-too-old"),
    ("Hi, secure boot is enabled on my laptop and the nvidia driver is missing.", "secure-boot-blocks-module"),
    ("Hi, nvidia-smi fails: the NVIDIA driver could not be loaded after I installed it.", "no-nvidia-driver"),
    ("My pod is pending forever, k8s says there is no GPU node.", "kubernetes-gpu-unavailable"),
    ("My container loses access to the GPU after a few hours.", "container-lost-gpu-cgroup"),
    ("I run the image with docker, but CUDA is not available inside.", "container-toolkit-missing"),
    ("In WSL2 my graphics card is not detected.", "wsl-gpu-blocked"),
    ("I run under docker with four cards, but only one GPU is used.", "cuda-visible-devices-wrong"),
    ("My Radeon card is not used with ROCm, everything falls back to the CPU.", "rocm-device-permission"),
    ("I bought an RTX 5090 and torch does not work with it: the 5090 is not supported, it says.", "gpu-arch-not-in-wheel"),
    ("I have a T4 and training the model runs out of VRAM.", "gpu-memory-too-small"),
    ("I cannot resume training: the last checkpoint is corrupted since the job was stopped.", "checkpoint-damaged"),
    ("Training stopped on our cluster, the scratch disk is full.", "disk-full-or-quota"),
    ("On our slurm cluster all ranks are 0 when I start with srun.", "job-launch-nested-wrongly"),
    ("I pip install it and cannot import it, its transformers version is incompatible.", "packages-conflict"),
    ("After upgrading torch my flash-attn is broken: an undefined symbol.", "extension-torch-abi-mismatch"),
    ("I have torch 2.4 but torchvision does not match.", "torch-torchvision-mismatch"),
    ("The DataLoader freezes for me, with num_workers=0 everything works.", "dataloader-worker-killed"),
    ("I load the weights and it fails: git-lfs was not installed.", "git-lfs-pointer"),
    ("I train with torch on an RTX 3060 and the GPU is never used.", "cpu-only-build"),
    ("We lose CUDA in torch after suspend, it fails until a reboot.", "nvidia-uvm-broken-after-suspend"),
    ("# vLLM killed due to high memory usage\n\nI start the model and it fails.", "host-memory-oom"),
    ("Importing numpy fails in my conda environment, an error related to not finding GLIBCXX_3.4.30.", "libstdcxx-too-old"),
    ("Importing it fails: we are unable to acquire a file lock, the home directory is on NFS.", "filesystem-without-locks"),
    ("# Is it incompatible with numpy 2.0?\n\nI install it with pip, and it fails for me.", "packages-conflict"),
    ("Our jobs fail to start: the munge key differs on the new node.", "munge-authentication-fails"),
    ("torchrun on two machines times out, likely because of docker's network isolation.", "firewall-blocks-nccl"),
    ("After a reboot the nvidia-uvm module is not loaded and no container sees CUDA.", "no-nvidia-driver"),
    ("With singularity on our nodes nvidia-smi reports no devices found.", "no-nvidia-driver"),
    ("CUDA works only with sudo for me, /dev/nvidia0 belongs to the group video.", "gpu-device-permission"),
    ("rocminfo fails for me: /dev/kfd is owned by the group render here.", "rocm-device-permission"),
    ("I try `modprobe nvidia` and it says the module does not exist.", "nvidia-module-not-built-for-kernel"),
    ("# nvidia 470 fails to compile on kernel 6.10", "nvidia-module-not-built-for-kernel"),
    ("# Cannot compile nvidia driver with linux-zen 6.9", "nvidia-module-not-built-for-kernel"),
    ("Fine-tuning ended with signal kill (9) while it loaded the weights.", "host-memory-oom"),
    ("My build fails, it cannot find cublas_v2.h for the extension.", "cuda-toolkit-missing"),
    ("Compiling the kernels fails for us, Python.h is not found.", "python-headers-missing"),
    ("HIP fails here: the wheel does not contain gfx1103 kernels.", "rocm-gpu-arch-not-in-wheel"),
]


TAKEN_BACK_OR_WISHED = [
    "Training stopped on our cluster, the scratch disk is full. Sorry for the noise, it was another host.",
    "I cannot resume training: the checkpoint is corrupted. I wrongly assumed that it is a zip.",
    "Training stopped on our cluster, the scratch disk is full.\n\nlabels: core, enhancement, stale",
    "Docker containers have network isolation by default. For distributed training with NCCL we publish a compose file with network_mode: host.",
    "Our Makefile does not build the nvidia driver any more, since the kernel packages bring it.",
    "To use the GPU in a container, /dev/nvidia-uvm has to be passed through by hand. With that our training image works.",
    "How much VRAM do I need? We ran out of GPU memory on a T4 with batch size 8, batch size 2 is fine.",
    "Our build requires cuda.h and Python.h; both are in the image.",
    "My container does not see the GPU, CUDA is not available with docker.\n\nIt was a false alarm, the image was an old one; I rebuilt it.",
    "I run the image with docker, but CUDA is not available inside.\n\nEdit: never mind, the machine is another one, without a GPU.",
    "We ship a compose file: containers have network isolation, so for torchrun we set network_mode: host, else ranks could not connect.",
    "One docker network per job or the host network for NCCL? Both run in our tests; errors are the same as before, none.",
    "I added my user to the render group long ago, ROCm works, and my question is: which torch wheel is the newest for it?",
    "Notes: modprobe nvidia failed on the previous machine. The new one is fine.",
    "torchrun on two machines hangs with NCCL, but not because of docker's network isolation, I checked that.",
    "Training on our cluster stops at times; it is not due to the scratch disk being full.",
    "It hangs with torchrun and NCCL. This can not be caused by docker's network isolation, since we have none.",
    "My loss diverges. I doubt that it is because of my swap being full, there is 60 GB free.",
]

STANDS = [
    ("Training stopped on our cluster, the scratch disk is full.\n\nNever mind the typo in the title.", "disk-full-or-quota"),
    (
        "I run the image with docker, but CUDA is not available inside.\nSorry for the confusion, I meant the image of 2.4.",
        "container-toolkit-missing",
    ),
    (
        "I run the image with docker, but CUDA is not available inside. I was wrong about the release: it is 2.4.",
        "container-toolkit-missing",
    ),
    ("I thought of the network. My mistake. Training stopped on our cluster, the scratch disk is full.", "disk-full-or-quota"),
    (
        "The false alarm rate of my model is fine, but training stopped on our cluster: the scratch disk is full.",
        "disk-full-or-quota",
    ),
    ("My swap is full and training crawls, it is not a false alarm.", "host-memory-oom"),
    ("We lose CUDA in torch after suspend, it fails until a reboot. My bad English, sorry.", "nvidia-uvm-broken-after-suspend"),
    (
        "My swap is full?\nNever mind, it is another host.\nOn our cluster training stopped, the scratch disk is full.",
        "disk-full-or-quota",
    ),
    (
        "I thought it was a false alarm, but it still fails: my container loses access to the GPU after a few hours.",
        "container-lost-gpu-cgroup",
    ),
    (
        "Our training could not start on two machines with NCCL due to docker's network isolation: a timeout.",
        "firewall-blocks-nccl",
    ),
    (
        "Hi, secure boot is enabled on my laptop and the nvidia driver is missing.\n\nlabels: bug, documentation",
        "secure-boot-blocks-module",
    ),
]
"""Words that take something back, of something else: what is told stands."""


@pytest.mark.parametrize(("text", "cause"), STANDS)
def test_what_is_told_stands_beside_words_that_take_something_else_back(text: str, cause: str) -> None:
    assert _named(text)[:1] == [cause]


def test_a_report_that_follows_an_earlier_one_is_no_change() -> None:
    """A pull request names what it fixes; who reports names what the report follows, too."""
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    assert _first(f"Follow-up to #88\n{error}") == _first(f"Supersedes #88, it was closed.\n{error}") == "gpu-arch-not-in-wheel"


@pytest.mark.parametrize("text", TAKEN_BACK_OR_WISHED)
def test_what_is_taken_back_wished_or_works_is_not_told(text: str) -> None:
    assert _named(text) == []


@pytest.mark.parametrize(("text", "cause"), TOLD)
def test_a_state_that_somebody_tells_is_found(text: str, cause: str) -> None:
    assert _named(text)[:1] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "I train a model and my swap is not full at all.",
        "We should check if the swap is full before training.",
        "We plan work on the cooling: nodes will be down on Monday, jobs in the cluster wait.",
        "A job that is stopped by the time limit is requeued by slurm.",
        "If nodes are down, the scheduler of our cluster requeues the jobs.",
        "Please add a warning to the trainer when the disk is full on the cluster.",
        "We train on multiple machines with NCCL: the speed is fine, the network is not the bottleneck.",
        "If secure boot is enabled, users of the nvidia driver must sign the module, I read.",
        "feat: handle corrupted checkpoints when I resume a model",
        "I use gcc 9.3 and CUDA 11, and my question is about the model's accuracy.",
        "Does it support training when the GPU memory is too small?",
        "The page says that the memory of an array is full of zeros.",
        "My browser tab gets killed while loading the model on android.",
        "I cannot download the model: the download quota of the file is exceeded.",
        "# Is it incompatible with numpy 2.0?\n\nI read that pip can resolve it. We could install a newer one.",
        "Hi, another option is storing the images on NFS, but training is slow then.",
    ],
)
def test_what_is_denied_advised_or_a_condition_is_not_taken(text: str) -> None:
    assert _named(text) == []


def test_each_row_has_known_causes_and_a_statement() -> None:
    """A row that no statement here needs would go unseen if it broke."""
    rows = [row["cause"].split("|") for row in tables.rows("told_states")]
    assert {cause for row in rows for cause in row} <= set(cause_rows())
    untried = {row[0] for row in rows} - {cause for _, cause in TOLD}
    assert untried <= {"numpy2-with-old-torch", "cpu-lacks-avx"}


def test_a_hostile_line_takes_linear_time() -> None:
    """Words of things and of states repeated, of which no state follows a thing."""
    took = []
    for size in (1, 4):
        text = "\n".join(["I train on the gpu " + "the my gpu is not the " * 60] * 40 * size)
        begun = time.process_time()
        list(told_states.symptoms_of({"x": [LogLine(number=1, text=line, printed=line) for line in text.split("\n")]}))
        took.append(time.process_time() - begun)
    assert took[1] < 12 * took[0] + 1


@pytest.mark.parametrize("sign", ["-", "-a", "a-", "'", "+", "/", "%", "is ", "gpu train ", "randomly "])
@pytest.mark.parametrize("thing", ["swap", "gpu", "container randomly", "versions", "type. Expected at label file"])
def test_a_run_of_signs_is_not_divided_in_every_way(thing: str, sign: str) -> None:
    """Signs that stand in words and between them: 32 behind a thing took minutes."""
    line = f"I train on my own images and the {thing} {sign * (500 // len(sign))} here"
    begun = time.process_time()
    for reader in (told_states, stated_causes):
        list(reader.symptoms_of({"x": [LogLine(number=1, text=line, printed=line)] * 4}))
    assert time.process_time() - begun < 2


def test_its_words_are_read_as_prose() -> None:
    assert all(stated_forms.PROSE.search(text) for text, _ in TOLD)


@pytest.mark.parametrize("line", ["[2025-01-07 20:16:26] {}", 'print("{}")', "{} && \\"])
def test_what_a_log_or_a_script_holds_is_said_by_nobody(line: str) -> None:
    text = "Hi, I tried it again with half of the batch size.\nThe training on my machine is slow.\n{}"
    told = "Now I see that my swap is nearly full"
    assert _first(text.format(told)) == "host-memory-oom"
    assert _first(text.format(line.format(told))) is None


def test_what_is_merely_told_explains_no_error_of_another_kind() -> None:
    told = "My training gets slower and slower. I see that the swap is nearly full."
    error = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    step()\nValueError: 3 heads'
    assert (_first(told), _first(f"{told}\n{error}")) == ("host-memory-oom", None)


@pytest.mark.parametrize(
    ("place", "cause"), [("/home/me/m", "checkpoint-damaged"), ("/Users/me/m", None), ("C:\\Users\\me\\m", None)]
)
def test_a_line_with_a_path_of_another_system_accuses_no_linux_host(place: str, cause: str | None) -> None:
    assert _first(f"RuntimeError: Internal: could not parse ModelProto from {place}/tokenizer.model") == cause


def _first(text: str) -> str | None:
    given = InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))
    return next((each.cause for each in diagnose([given]).causes), None)


@pytest.mark.parametrize("words", ["the our all ", "the my our ", "is are was ", "the this whole "])
def test_no_run_of_small_words_is_divided_in_every_way(words: str) -> None:
    """Eighteen words are enough: with two ways to read each, a row needs seconds."""
    for row in told_states._rows():
        began_s = time.thread_time()
        row.words.search(words * 6 + "zzz")
        assert time.thread_time() - began_s < 0.2, row.causes


@pytest.mark.parametrize(
    "text",
    [
        "Check whether the nfs is hung on the node before you start a Slurm job.",
        "If lustre hangs on a node, our Slurm epilog drains it by itself.",
        "What does CG mean in squeue? In the Slurm docs I found that jobs are in CG while the epilog runs.",
        "Our scancel wrapper waits while jobs are in COMPLETING for five minutes. It works well.",
    ],
)
def test_a_state_that_is_supposed_or_passes_is_not_told(text: str) -> None:
    assert _named(text) == []
