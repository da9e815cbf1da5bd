"""What people complain of where no program says what failed: possible causes with the command that decides, or what to look at; never what is asked, supposed, or a term of the field."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from diagnose.test_forms import judged
from torchtune_sys.diagnosis import told_symptoms
from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.render.diagnosis import text
from torchtune_sys.render.layout import Style

PASTED = Path(__file__).with_name("pasted.txt")

TOLD = [
    (
        'Multi-node training stuck at the beginning. I launch with torchrun on 2 nodes, both print "Initializing distributed" and then nothing happens.',
        "firewall-blocks-nccl",
    ),
    ("why does accelerate launch never start on my second machine? I have two machines with 1 GPU each.", "firewall-blocks-nccl"),
    ("两台机器训练，torchrun 启动后一直卡住，单机正常", "firewall-blocks-nccl"),
    ("I installed torch by pip. torch.cuda.is_available() is False although nvidia-smi shows my GPU.", "cpu-only-build"),
    ("Pytorch doesn't detect my GPU. nvidia-smi is fine. I reinstalled it with conda.", "cpu-only-build"),
    ("torch.cuda.is_available() returned False after I closed the lid of my laptop.", "nvidia-uvm-broken-after-suspend"),
    ("CUDA works when I just booted. After suspend torch can't find the GPU on my laptop.", "nvidia-uvm-broken-after-suspend"),
    ("My GPU gets hot (88 °C) and after ten minutes the training speed drops from 7 it/s to 3 it/s.", "gpu-thermal-throttle"),
    ("Training with 4 GPUs gets stuck at the first step. With one GPU it runs well.", "p2p-blocked-by-iommu-acs"),
    ("Hallo, mein Training bleibt hängen, torch DDP mit 2 GPUs, auf einer GPU läuft es.", "p2p-blocked-by-iommu-acs"),
    ("Our FSDP job hangs after about 3000 steps every time, all 32 ranks wait, no error message.", "rank-hung"),
    ("On 2 nodes our throughput is lower than on one node. We're using 10G ethernet, ddp.", "straggler-network"),
    ("Our training on 4 nodes brings no speedup compared to a single node, the network is 25 Gbit.", "straggler-network"),
    ("Our jobs with gpu-node-12 are always slow, steps take 4 s instead of 2 s. Any other nodes are fine.", "straggler-compute"),
    ("Same seed, same data, only on our node17 the loss differs. All other nodes agree.", "silent-data-corruption"),
    ("My python process just disappears while it loads the model, RAM in htop goes to 100 %.", "host-memory-oom"),
    ("In the docker container my DataLoader hangs with num_workers > 0.", "dev-shm-too-small"),
]

UNTOLD = [
    "My loss is nan after switching to fp16. What can I do?",
    "My training loss goes to nan after ~200 steps when I use fp16, with bf16 it is fine. GPU is V100",
    "Training crashes randomly without any error, back to the shell. RTX 4090.",
    "Training hangs from time to time on my single GPU, I need to restart.",
    "Training got much slower since yesterday, 4 s/it instead of 1. Same code, same GPU.",
    "я обучаю модель, torch зависает на первом шаге",
    "training is broken",
    "my training does not work anymore",
    "job 17 failed",
    "the run is stuck since yesterday",
]

HARMLESS = [
    "Does DDP hang when one rank has fewer batches?",
    "How do I use torchrun on 2 nodes so that it does not hang if a node dies?",
    "We never saw it hang on two nodes with nccl 2.20. Which version do you use for training?",
    "I implemented a timeout so that init_process_group would not hang on two nodes. Can you review the torchrun part?",
    "We freeze the encoder and train the head on two GPUs; a single GPU was too small. What lr do you use?",
    "I want to freeze layers when I train with 2 GPUs using DDP. On one GPU it works with requires_grad=False.",
    "I'm stuck with the math of the loss function, can somebody explain the second term? I train a VAE.",
    "Our lecture covers deadlocks in distributed systems with several nodes; the init of a rendezvous is an example.",
    "Great, training finished on 2 nodes in 3 hours, nothing hung this time. How do I export to ONNX?",
    "Feature: show why a training hangs on several nodes.",
    "The docs say that NaN loss may come from fp16. Which scaler should I use for my training?",
    "What is the best way to detect nan in the loss of a GAN? I train with fp16.",
    "I replaced nan in the loss with zero by torch.nan_to_num and now training works well.",
    "I wrote a blog post on why DDP is slower than one GPU for tiny models, samples/s and all. Feedback welcome.",
    "My model is stuck at 60% accuracy after 20 epochs of training with torch.",
    "The loss gets stuck at 0.69 in training, torch 2.3, single GPU. Is the architecture wrong?",
    "My M2 MacBook is slow in training, 2 it/s per epoch step, fans are at max.",
    "I never start training before I check the data. I've two GPUs, one GPU for eval. Which loader do you like with DDP?",
    "The learning rate finder exits without an error after 100 steps of training, as documented. Where is the plot?",
    "Training exits suddenly after the last epoch, which is what I want. How do I also save the optimizer?",
    "The notebook kernel restarts when I click the button; that's fine. How do I load my data set faster into RAM?",
    "Our server runs on the CPU by design; nvidia-smi works and shows the GPU for the training job.",
    "We ran on node17 and it takes 3 s per step; on all other nodes it takes 3 s as well. Training is stable.",
    "The DataLoader gives a warning in docker. How do I silence it? Our training doesn't start slower.",
    "the job did not fail",
    "no job failed today",
    "the run never crashed",
    "Today: alerts for full disks and for jobs that hang.",
    "The button gets stuck when I click it twice, the page never starts loading. We train a model in the backend.",
]


@pytest.mark.parametrize(("told", "cause"), TOLD)
def test_a_complaint_is_possible_and_says_what_decides(told: str, cause: str) -> None:
    found = judged(told.encode())
    assert [each.cause for each in found.causes][:1] == [cause]
    assert {each.confidence for each in found.causes} == {Confidence.POSSIBLE} and found.causes[0].confirm
    assert "from words alone" in text(found, Style(width=400))


@pytest.mark.parametrize("told", UNTOLD)
def test_one_that_points_to_nothing_says_what_to_look_at(told: str) -> None:
    found = judged(told.encode())
    assert not found.causes and [each.text for each in found.unexplained] == [told] and found.unexplained[0].ask
    shown = text(found, Style(width=400))
    assert shown.startswith("cause not known: somebody tells that something fails") and "look at: " in shown


@pytest.mark.parametrize("told", HARMLESS)
def test_what_is_asked_or_supposed_is_no_complaint(told: str) -> None:
    found = judged(told.encode())
    assert not found.causes and not found.unexplained


def test_what_a_program_prints_comes_before_what_is_told() -> None:
    told = "My training hangs in init_process_group with two nodes.\n\n"
    found = judged((told + "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.").encode())
    assert [each.cause for each in found.causes] == ["dev-shm-too-small"]
    own = judged((told + '  File "a.py", line 3, in f\n    x[9]\nIndexError: list index out of range').encode())
    assert not own.causes and "IndexError" in own.unexplained[0].text


def test_words_without_an_end_are_read_in_proportion() -> None:
    words = ("my slow job on " + each for each in ("1" * 1400 + "_", "a" * 700 + "1" * 700 + "_", "node" * 350))
    started = time.process_time()
    for each in words:
        judged("\n".join([each] * 20).encode())
    assert time.process_time() - started < 20


def test_rows_name_causes_and_ask() -> None:
    assert all(row.ask and set(row.causes) <= set(cause_rows()) for row in told_symptoms.rows())


def test_whole_pastes_that_were_opened_are_named() -> None:
    reports = [part.split("\n", 1) for part in f"\n{PASTED.read_text()}".split("\n@@@ ")[1:]]
    wrong = []
    for heading, body in reports:
        name, part, *causes = heading.split()
        if part in ("generic-third", "thin"):
            named = [each.cause for each in judged(body.encode()).causes][:1]
            wrong += [] if set(named) <= set(causes) and (named or causes[0] in ("none", "unknown")) else [(name, named)]
    assert wrong == [] and len(reports) > 100
