"""What people say of a fault: taken where they found it, not where they ask, deny, guess or advise."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchtune_sys.diagnosis import stated_causes
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE
from torchtune_sys.diagnosis.text.lines import lines_of
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.stated_words import filled
from torchtune_sys.model.patterns import Phrase, folded


def _named(text: str) -> list[str]:
    lines = {"x": lines_of(enumerate(text.split("\n"), 1))}
    return [candidate.cause for symptom in stated_causes.symptoms_of(lines) for candidate in symptom.candidates]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("It hangs. I disabled the firewall on both nodes. Now it works.", "firewall-blocks-nccl"),
        ("When importing tensorflow I am getting an illegal instruction error.", "cpu-lacks-avx"),
        ("The NVIDIA installer complains. After blacklisting nouveau the driver could be installed.", "nouveau-loaded"),
        ("The NVIDIA driver is not loaded. It was Secure Boot; I turned it off.", "secure-boot-blocks-module"),
        ("No GPU in docker, it fails. I forgot to install nvidia-container-toolkit, now it works.", "container-toolkit-missing"),
        ("nvidia-smi fails. Ubuntu had upgraded the nvidia packages. A reboot solved it.", "nvml-driver-library-mismatch"),
        (
            "Training freezes. The machine has only 4 cores. Setting num_workers=4 solved it.",
            "dataloader-workers-exceed-cpus",
        ),
        ("I get a kernel image error with torch on my new 5080.", "gpu-arch-not-in-wheel"),
        ("mpirun over ssh is stuck. localhost wasn't passwordless.", "ssh-login-fails"),
        (
            "MPI training runs out of memory. We need to give different CUDA_VISIBLE_DEVICES to each process.",
            "several-ranks-on-one-gpu",
        ),
        ("load_dataset is stuck. File locking doesn't work on our NFS.", "filesystem-without-locks"),
        ("GPU не используется. Был поставлен torch без поддержки cuda", "cpu-only-build"),
        ("DDP fails. It seems GPU 0 always occupies memory for each script.", "several-ranks-on-one-gpu"),
        ("两个节点 NCCL 报错。首先关闭防火墙，然后正常。", "firewall-blocks-nccl"),
        ("The import fails. The prebuilt binaries do not work with pytorch v1.5.0", "extension-torch-abi-mismatch"),
        ("We are out of space. The checkpoints of our training fill the disk.", "disk-full-or-quota"),
        ("The GPU is idle in training, a problem that I solved: my data is not stored in the SSD.", "slow-data-storage"),
        ("CUDA is not available. I find that I use torch-cpu rather than torch-gpu.", "cpu-only-build"),
        ("We train on two machines and fail, the master_port is already used.", "master-port-in-use"),
        ("NCCL hangs. Actual fix: update the GPU driver to the latest.", "driver-too-old"),
        ("CUDA OOM although nobody trains. It was a zombie process of a crashed run.", "gpu-memory-in-use"),
        ("nms fails with torch 2.1. pip install torchvision==0.16.0 fixed the error.", "torch-torchvision-mismatch"),
        ("NCCL over IB fails. ibstat showed that mlx5_1 was Down.", "ib-port-down"),
        ("NCCL fails as one port is down. Setting NCCL_IB_HCA=mlx5_0 solved it.", "ib-port-down"),
        ("Training stops. Our Slurm partition has a time limit of 24 h.", "job-time-limit"),
        ("I cannot download the model. The compute nodes have no internet.", "index-unreachable"),
        (
            "Error 804 on a GeForce. Removing the cuda-compat package from the image fixed it.",
            "forward-compat-unsupported-gpu",
        ),
        ("nvidia-smi fails. The image contained libcuda of another driver.", "image-contains-driver-libraries"),
        ("deepspeed fails. conda install -c nvidia cuda-toolkit solved it.", "cuda-toolkit-missing"),
        ("The second node fails. I had MASTER_ADDR=localhost on it. Using the IP of the first fixed it.", "master-addr-wrong"),
        (
            "The build fails. I added the arg -ccbin=/usr/bin/gcc-6 to nvcc, then the CUDA problem is solved!",
            "host-compiler-too-new",
        ),
        ("The glibc of our cluster (2.12) is not new enough, the import fails.", "glibc-too-old"),
        (
            "My GPU is not used, torch fails. conda-forge seems to result in installing the `cpu-only` version.",
            "cpu-only-build",
        ),
        (
            "Building flash-attn fails with No module named 'torch'. But torch is actually installed!",
            "torch-hidden-by-build-isolation",
        ),
        (
            "My training fills /tmp with files and exhausts the disk space, so I wonder if we can turn that off, it fails.",
            "disk-full-or-quota",
        ),
        (
            "The two nodes hang at init_process_group. Rank 1 connects to 172.17.0.2, which is docker's own.",
            "nccl-wrong-interface",
        ),
        ("NCCL fails between our machines. Running the containers with --network=host solved it.", "nccl-wrong-interface"),
        ("After an hour RAM and swap are both full and the job dies.", "host-memory-oom"),
        ("Our GPU node was updated: the nvidia driver is gone after the OS upgrade.", "nvidia-module-not-built-for-kernel"),
        ("Two A6000 hang at the barrier. Setting NCCL_P2P_LEVEL=LOC solved it.", "p2p-blocked-by-iommu-acs"),
        ("It ran on the processor. torch cpu version was installed from the requirements, I have a GPU.", "cpu-only-build"),
        ("I have problems with my new RTX 5070, pytorch fails there.", "gpu-arch-not-in-wheel"),
        ("The build of the torch extension fails. The errors occur because gcc 5.4 is too old.", "host-compiler-too-old"),
        ("CUDA runs out of memory. There is another program that takes most of the GPU memory.", "gpu-memory-in-use"),
        ("I start two DDP trainings on the same server and get a port conflict error.", "master-port-in-use"),
        ("CUDA fails with torch: the GPU stops working after the laptop was suspended.", "nvidia-uvm-broken-after-suspend"),
        (
            "I managed to fix CUDA after sleep by setting NVreg_PreserveVideoMemoryAllocations=1.",
            "nvidia-uvm-broken-after-suspend",
        ),
        (
            "DeepSpeed fails for the second user: /tmp/torch_extensions was made without write permission.",
            "compile-cache-not-writable",
        ),
        ("clinfo on ROCm cannot list devices as a user. I had to add the user to the `render` group.", "rocm-device-permission"),
        ("CUDA fails under WSL, /dev/dxg is missing.", "wsl-gpu-blocked"),
        ("After an update of Windows WSL doesn't see the GPU, CUDA fails.", "wsl-gpu-blocked"),
        ("The RTX 5070 Ti cannot work with CUDA 11.8 and its torch, it fails.", "gpu-arch-not-in-wheel"),
        ("The compute nodes failed to download the weights. Setting HF_HUB_OFFLINE=1 solved it.", "index-unreachable"),
        (
            "My GPU is not detected inside the docker container, the error is the same with two images.",
            "container-toolkit-missing",
        ),
        ("My GPU is idle: 60% of the training time is spent in the DataLoader, which is a problem.", "slow-data-storage"),
        ("Training on my GPU is broken: the speed goes from 5 it/s to 0.5 it/s after some epochs.", "gpu-thermal-throttle"),
        (
            "I tried three drivers and nothing changed, but setting NCCL_SOCKET_IFNAME=bond0 solved the hang.",
            "nccl-wrong-interface",
        ),
        ("NCCL fails. If I run with NCCL_IB_DISABLE=1, everything works fine.", "roce-gid-index"),
        ("The ranks time out. Root cause: **ACS enabled in BIOS**.", "p2p-blocked-by-iommu-acs"),
        ("NCCL is stuck; it turned out that the nodes had different MTUs.", "mtu-differs-between-nodes"),
        ("Training over InfiniBand fails because of a broken cable on node 4.", "ib-port-down"),
        ("The IB card is dead on node-7, all jobs there fail.", "rdma-adapter-failed"),
        (
            "All nodes fail to register. Clocks on the compute nodes are off by 4 minutes, says the credential error.",
            "clock-skew",
        ),
        ("After my script crashed the GPU memory was never freed, every run fails.", "gpu-memory-in-use"),
        ("nvidia-smi only works with sudo, as a user it fails.", "gpu-device-permission"),
        ("torch sees no GPU. Adding my user to the video group solved it, torch can now see it.", "gpu-device-permission"),
        ("No GPU found. It turned out that conda had installed the CPU version of pytorch, without CUDA.", "cpu-only-build"),
        ("On a Jetson Xavier torch.cuda.is_available() always returns False, the installation was fine.", "cpu-only-build"),
        (
            "Import fails. The problem was that flash-attn had been compiled for another torch version.",
            "extension-torch-abi-mismatch",
        ),
        ("The build failed because nvcc was not installed, pip install stopped there.", "cuda-toolkit-missing"),
        ("No GPU in docker. Docker was installed from snap, with docker-ce it works.", "container-toolkit-missing"),
        ("nvidia-smi failed. Disabling Secure Boot solved the issue.", "secure-boot-blocks-module"),
        ("The nvidia module does not load. Blacklisting nouveau fixed it.", "nouveau-loaded"),
        (
            "nvidia-smi fails. After a kernel upgrade, reinstalling the nvidia driver fixed it.",
            "nvidia-module-not-built-for-kernel",
        ),
        ("torch.compile failed because python3-dev was missing.", "python-headers-missing"),
        ("nvcc failed because gcc 13 is too new for CUDA 11.8.", "host-compiler-too-new"),
        ("The torch extension fails because gcc 7 is too old.", "host-compiler-too-old"),
        ("The cudnn error is gone: unsetting LD_LIBRARY_PATH fixed it.", "cudnn-shadowed-by-ld-library-path"),
        ("UnpicklingError at the checkpoint. git lfs pull fixed it.", "git-lfs-pointer"),
        ("With expandable_segments:True the out of memory does not happen any more.", "gpu-memory-fragmented"),
        ("It crashes on my card. export HSA_OVERRIDE_GFX_VERSION=10.3.0 fixed it.", "rocm-gpu-arch-not-in-wheel"),
        ("Setting KMP_DUPLICATE_LIB_OK=TRUE made the training run without the crash.", "openmp-runtime-conflict"),
        ("import torch fails: I had a file called torch.py in the folder.", "torch-shadowed"),
        ("The job crashes because ~/.triton is not writable.", "compile-cache-not-writable"),
        ("Training on the GPU crawls, and the bottleneck is reading the images.", "slow-data-storage"),
        ("Our GPUs spend most of the epoch waiting for data.", "slow-data-storage"),
        ("The profile says that 80 % of each training step goes to the data loader, the GPU is idle.", "slow-data-storage"),
        ("Training is slow: a batch takes 2.5 s and of that 2.3 s are data loading, the GPU is at 4 %.", "slow-data-storage"),
        ("Training takes hours. The files are on a hard disk, which is slow, num_workers does not help.", "slow-data-storage"),
        ("An epoch took hours. Moving the dataset to a local SSD made it 6x faster.", "slow-data-storage"),
        ("训练的时候数据加载非常慢，显卡一直空着", "slow-data-storage"),
        ("データの読み込みが遅く、学習が進まない", "slow-data-storage"),
        ("Загрузка данных очень медленная, обучение на видеокарте идёт неделю", "slow-data-storage"),
        ("GPU training was slow because all cores are at 100 %.", "dataloader-workers-exceed-cpus"),
        (
            "Training was slow. Reducing num_workers to 4 made it twice as fast, it runs faster now.",
            "dataloader-workers-exceed-cpus",
        ),
        ("In training the RAM keeps growing, and at 128 GB the process is killed.", "host-memory-oom"),
        ("Training is slow, the GPU idle. I noticed that torch was installed as the cpu version?", "cpu-only-build"),
        ("It hangs: one node has virbr0, and NCCL was opening its socket on it, NCCL used virbr0.", "nccl-wrong-interface"),
        ("It did not see the GPU. I updated the NVIDIA driver, so both work well finally.", "driver-too-old"),
    ],
)
def test_a_finding_is_taken(text: str, cause: str) -> None:
    assert _named(text)[:1] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "It hangs. Does disabling the firewall help?",
        "It hangs. Disabling the firewall did not help.",
        "It hangs. Disabling the firewall may help.",
        "It hangs. If you set NCCL_IB_DISABLE=1, everything works fine.",
        "It hangs. We usually solved this by disabling the firewall.",
        "It hangs. This PR disables ACS, which solved the problem.",
        "It hangs. Could it be caused by different MTUs on the nodes?",
        "It hangs. The problem is not a broken cable.",
        "It hangs. Maybe it was the firewall.",
        "The nodes hang. Using the IP of the first one fixed it.",
        "It hangs. I wonder whether it was Secure Boot of the GPU node.",
        "It hangs. The documentation says that a broken cable is the cause.",
        "We run with NCCL_P2P_DISABLE=1 and everything works fine.",
        "Everything works since the beginning with iommu=pt.",
        "Please add wheels for python 3.13, torch 2.6 is not supported with it.",
        "After del model the GPU memory is not released, is this a memory leak? It crashes.",
        "The results of flash attention differ from torch and training fails to converge.",
        "Can I use CUDA 12.4? The build of the extension for torch says 11.8 and fails.",
        "Training is killed by early stopping after three epochs, how do I disable it?",
        "It is slow. I do not know whether the IOMMU is enabled.",
        "Our file locks in redis do not work, the training fails.",
        "It fails on two nodes. 防火墙是否关闭了？",
    ],
)
def test_what_nobody_found_is_not_taken(text: str) -> None:
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "All ranks on my second box crash with a bus error. Shared memory in the container is too small.",
            "dev-shm-too-small",
        ),
        ("We see hangs at the first allreduce. The subnet manager was down, so the IB ports stayed in Init.", "ib-port-down"),
        ("I can't start the job, the scratch disk is full.", "disk-full-or-quota"),
        ("Our training fails: NFS on the login node does not respond.", "hung-mount"),
        ("My second training fails at once, the master port is already taken.", "master-port-in-use"),
        ("NVLink 4 between GPU 2 and 3 is down, and our job hangs.", "nvlink-inactive"),
    ],
)
def test_a_fault_that_is_merely_told_is_possible(text: str, cause: str) -> None:
    (first, *_) = stated_causes.symptoms_of({"x": lines_of([(1, text)])})
    assert (first.candidates[0].cause, first.candidates[0].weight) == (cause, POSSIBLE)


@pytest.mark.parametrize(
    "text",
    [
        "My model fails to converge. The disks are not full.",
        "My job fails. I would like to be told when a node is down.",
        "We get an error. Check that the firewall is open and no port is blocked.",
        "My training fails. When a disk is full, the trainer should stop.",
        "I get errors. [rank0]: ERROR: /data/disk.cc:12 disk is full",
        "My download fails. The error says that my quota has been exceeded, though I bought more units for training.",
    ],
)
def test_a_fault_that_is_asked_for_advised_or_printed_is_not_told(text: str) -> None:
    assert _named(text) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("DDP is stuck with two RTX 4090. I ran\n\nexport NCCL_P2P_DISABLE=1\n\nand the training starts.", "geforce-p2p-broken"),
        ("Both nodes wait at init. What I did:\nexport NCCL_SOCKET_IFNAME=ens3\nSolved!", "nccl-wrong-interface"),
        (
            "It crashes. The workaround is this variable:\nHSA_OVERRIDE_GFX_VERSION=11.0.0\nwhich lets me train.",
            "rocm-gpu-arch-not-in-wheel",
        ),
    ],
)
def test_a_remedy_may_stand_above_the_line_that_says_it_helped(text: str, cause: str) -> None:
    assert _named(text)[:1] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "Both nodes wait at init. What I did:\nexport NCCL_SOCKET_IFNAME=ens3\nStill the same error.",
        "The GPU is at 98 %, so the data loader is not the bottleneck, but training on it is slow.",
        "Training on my GPU is slow. Is the data loader the bottleneck?",
        "Feature request: read the dataset in more processes, slow disks make training on the GPU slow.",
        "I did not have this problem until I installed the CUDA toolkit; the build fails.",
        "The build of the extension worked well until I installed the CUDA toolkit, then it failed.",
        "If I set --nproc_per_node=1, then it runs alright, with 2 it is stuck.",
        "My app's memory keeps growing when I scroll, and Android kills it.",
        "It failed. After changing it to the GPU version it works.",
    ],
)
def test_what_is_no_remedy_and_no_bottleneck_is_not_taken(text: str) -> None:
    assert _named(text) == []


def test_sentences_that_were_broken_at_a_width_are_whole() -> None:
    text = "docker could not see the GPU. Installing nvidia-container-toolkit and restarting docker fixed it."
    (first, second) = textwrap.wrap(text, 80)
    assert _named(f"{first}\n{second}")[:1] == ["container-toolkit-missing"]


def test_what_is_told_gives_way_to_what_somebody_blames() -> None:
    assert _named("My node n7 is unresponsive and the job hangs.\nIt turned out to be the firewall.") == ["firewall-blocks-nccl"]


def test_what_is_only_claimed_is_possible_and_what_helped_is_likely() -> None:
    told = {
        "My job fails, the root file system is 100 % used.": POSSIBLE,
        "The job failed. Freeing disk space solved it.": LIKELY,
    }
    for said, weight in told.items():
        lines = {"x": lines_of(enumerate([said], 1))}
        found = [each for symptom in stated_causes.symptoms_of(lines) for each in symptom.candidates]
        assert [(each.cause, each.weight) for each in found] == [("disk-full-or-quota", weight)], said


def test_several_causes_are_possible_and_one_is_likely() -> None:
    weights = {
        text: {
            candidate.weight
            for symptom in stated_causes.symptoms_of({"x": lines_of([(1, text)])})
            for candidate in symptom.candidates
        }
        for text in ("Setting NCCL_SOCKET_IFNAME=eth1 solved it.", "Setting NCCL_IB_DISABLE=1 solved it.")
    }
    assert list(weights.values()) == [{LIKELY}, {POSSIBLE}]


@pytest.mark.parametrize(
    "text",
    [
        "The training fails. I've installed pytorch according with the cuda version of my computer.",
        "The nodes do not work together. What is the IP of the machine of the main process? same IP",
        "It crashed: a spike tripped the power supply. We limited the GPU to 350 W, and that solved it.",
    ],
)
def test_what_is_set_up_as_it_should_be_is_no_cause(text: str) -> None:
    assert _named(text) == []


PHRASES = sorted(
    {filled(row[part]) for row in tables.rows("stated_causes") for part in ("subject", "setting", "claim") if row[part]}
)


@given(st.sampled_from(PHRASES).flatmap(lambda each: st.tuples(st.just(each), st.from_regex(re.compile(f"(?is){each}")))))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_text_that_names_a_thing_holds_one_of_its_words(case: tuple[str, str]) -> None:
    phrase, text = case
    assert Phrase(phrase).may_be_in(folded(text))


def test_of_all_things_few_are_looked_for_in_a_line() -> None:
    rows = [each for row in stated_causes._rows() for each in (row.subject, row.setting, row.claim) if each is not None]
    looked_for = [
        each for each in rows if each.may_be_in(folded("It hangs. I disabled the firewall on both nodes. Now it works."))
    ]
    assert len(rows) > 250
    assert len(looked_for) < len(rows) // 4
