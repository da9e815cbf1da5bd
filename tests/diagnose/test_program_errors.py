"""Mistakes of the training program itself, really made with torch: told as such, and never as a fault of the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from diagnose.test_diagnose_command import found, run
from smoke.faults.bench import torch_python

MADE = """
import json, os, sys, traceback
import torch
from torch import nn
import torch.distributed as dist

class Ragged(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, at): return torch.zeros(at + 1)

class Failing(Ragged):
    def __getitem__(self, at): raise KeyError(at)

def twice():
    loss = (torch.ones(2, requires_grad=True) * 2).exp().sum()
    loss.backward(); loss.backward()

def in_place():
    x = torch.ones(2, requires_grad=True).exp()
    y = x.exp()
    x += 1
    y.sum().backward()

def loading():
    nn.Linear(2, 3).load_state_dict(nn.Linear(2, 2).state_dict())

def groups():
    torch.optim.SGD(nn.Linear(2, 2).parameters(), 1).load_state_dict(torch.optim.SGD([{"params": [p]} for p in nn.Linear(2, 2).parameters()], 1).state_dict())

def weights():
    torch.save(Ragged(), sys.argv[1]); torch.load(sys.argv[1])

MADE = {
    "range": lambda: nn.Embedding(4, 2)(torch.tensor([4])),
    "label": lambda: nn.CrossEntropyLoss()(torch.zeros(1, 3), torch.tensor([7])),
    "detach": twice,
    "in-place": in_place,
    "nothing in the loss is trained": lambda: torch.ones(2).sum().backward(),
    "one number": lambda: torch.ones(2, requires_grad=True).exp().backward(),
    "data types that meet": lambda: nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.float64)),
    "shapes": lambda: nn.Linear(2, 2)(torch.ones(1, 3)),
    "differ in size": lambda: next(iter(torch.utils.data.DataLoader(Ragged(), batch_size=2))),
    "one sample": lambda: nn.BatchNorm1d(2)(torch.ones(1, 2)),
    "between checkpoint and model": loading,
    "parameter groups": groups,
    "weights_only=False": weights,
    "init_process_group first": lambda: dist.all_reduce(torch.ones(1)),
    "the dataset's code": lambda: next(iter(torch.utils.data.DataLoader(Failing(), num_workers=1))),
    "started by spawn": lambda: next(iter(torch.utils.data.DataLoader([1], num_workers=1, multiprocessing_context="spawn", collate_fn=lambda each: each))),
    "stands where a number": lambda: bool(torch.ones(2)),
    "which parameters": lambda: torch.optim.SGD([], 1),
    "they do not fit": lambda: torch.ones(2, 3).t().view(6),
    "do not fit": lambda: torch.ones(2).expand(3),
    "layer and of its input": lambda: nn.Conv2d(1, 1, 3)(torch.ones(1, 1, 2, 2)),
    "shapes of the layer": lambda: torch.ones(10).split([4, 4]),
    "two data types": lambda: nn.Embedding(2, 2)(torch.ones(1)),
    "one batch differ": lambda: torch.utils.data.default_collate([[1, 2], [1]]),
    "no None": lambda: torch.utils.data.default_collate([None, None]),
    "the dataset is empty": lambda: torch.utils.data.DataLoader([], shuffle=True),
    "became NaN": lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1),
    "values became NaN": lambda: torch.distributions.Normal(torch.tensor([float("nan")]), 1.0),
    "an array is wanted": lambda: torch.ones(4).item(),
}
found = {}
for name, make in MADE.items():
    try:
        make()
    except Exception:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    place = tmp_path_factory.mktemp("made")
    done = subprocess.run([torch_python(), "-c", MADE, str(place / "saved.pt")], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 29
    return found


@pytest.mark.turn(0)  # who makes the errors imports torch twice
def test_each_is_told_as_the_programs_own_with_where_to_look(raised: Mapping[str, str]) -> None:
    told = {}
    for words, text in raised.items():
        value = found(stdin=text.encode())
        unexplained = value["unexplained"]
        assert isinstance(unexplained, list)
        told[words] = (value["causes"], [words in error.get("fix", "") for error in unexplained[:1]])
    assert told == dict.fromkeys(raised, ([], [True]))


@pytest.mark.turn(0)
def test_the_first_line_says_so_and_the_exit_status_is_3(raised: Mapping[str, str]) -> None:
    done = run(stdin=raised["shapes"].encode())
    assert (done.returncode, done.stdout.decode().splitlines()[0]) == (
        3,
        "error of the training program itself; no sign of a fault of its host",
    )


@pytest.mark.turn(0)
def test_a_cause_in_the_same_text_comes_first(raised: Mapping[str, str]) -> None:
    text = raised["shapes"] + "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
    assert b"dev-shm-too-small" in run(stdin=text.encode()).stdout.splitlines()[0]


FRAMES = """Traceback (most recent call last):
  File "/home/me/train.py", line 15, in step
    loss = net(batch)
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
"""


@pytest.mark.parametrize(
    ("error", "place", "words"),
    [
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x64 and 128x10)", "/home/me/train.py:15 in step; raised at /opt", "(16x64"),
        ("RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: \"enc.w\". ", "/home/me/train.py:15", '"enc.w"'),
    ],
)  # fmt: skip
def test_the_place_is_the_programs_own_and_the_message_is_whole(error: str, place: str, words: str) -> None:
    told = found(stdin=f"{FRAMES}{error}\n".encode())["unexplained"]
    assert isinstance(told, list)
    assert told[0]["place"].startswith(place)
    assert words in told[0]["text"]


def test_a_mistake_in_the_programs_own_file_is_told_as_such() -> None:
    own = FRAMES.partition('  File "/opt')[0] + "KeyError: 'text'\n"
    assert run(stdin=own.encode()).stdout.startswith(b"error of the training program itself")
    assert run(stdin=f"{FRAMES}KeyError: 'text'\n".encode()).stdout.startswith(b"error not known")


def test_what_ended_the_program_comes_before_a_warning() -> None:
    warned = "/opt/torch/cuda/__init__.py:182: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).\n"
    ended = "ImportError: /opt/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcEE\n"
    value = found(stdin=f"{warned}{FRAMES}{ended}".encode())
    assert isinstance(value["causes"], list)
    assert [each["cause"] for each in value["causes"]] == ["extension-torch-abi-mismatch", "driver-too-old"]


INTERRUPTED = FRAMES + "KeyboardInterrupt\nRuntimeError: DataLoader worker (pid 88) is killed by signal: Interrupt.\n"


@pytest.mark.parametrize(
    ("before", "status", "first"),
    [
        ("", 3, "interrupted by somebody: no error of a program stands before it"),
        ("I pressed Ctrl-C in epoch 4, is the checkpoint of epoch 3 whole?\n", 0, "no failure was found"),
        (
            "My training hangs on one of two nodes, so I pressed Ctrl-C:\n",
            3,
            "cause not known: somebody tells that something fails",
        ),
        (f"{FRAMES}RuntimeError: something new\n", 3, "error not known"),
    ],
)
def test_who_ends_a_program_by_hand_makes_no_error(before: str, status: int, first: str) -> None:
    done = run(stdin=(before + INTERRUPTED).encode())
    said = done.stdout.decode()
    assert (done.returncode, said.startswith(first)) == (status, True), said
    assert ("/home/me/train.py:15 in step" in said) == (status == 3)


@pytest.mark.parametrize(
    ("assertion", "words"),
    [
        ("Loss.cu:245: nll_loss_forward: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.", "the labels"),
        ("Indexing.cu:1422: indexSelectLargeIndex: block: [8,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.", "embedding"),
        ("Loss.cu:91: operator(): block: [0,0,0], thread: [0,0,0] Assertion `input_val >= zero && input_val <= one` failed.", "BCEWithLogits"),
        ("unknown.cu:1: f: block: [0,0,0], thread: [0,0,0] Assertion `x` failed.", "CUDA_LAUNCH_BLOCKING=1"),
    ],
)  # fmt: skip
def test_an_assertion_of_the_device_tells_what_is_out_of_range(assertion: str, words: str) -> None:
    told = found(stdin=f"{assertion}\n{FRAMES}RuntimeError: CUDA error: device-side assert triggered\n".encode())["unexplained"]
    assert isinstance(told, list)
    assert words in told[0]["fix"]


def test_what_nccl_prints_as_information_is_no_error() -> None:
    line = "g1:1:2 [0] NCCL INFO Failed to open libnccl-tuner.so: libnccl-tuner.so: cannot open shared object file: No such file or directory. Using internal tuner plugin.\n"
    assert (run(stdin=line.encode()).returncode, found(stdin=line.encode())["unexplained"]) == (0, [])


CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f10aa7fc6c0 [pt_autograd_0] (most recent call first):
  <no Python frame>

Current thread 0x00007ff80a5bdb80 [python] (most recent call first):
  File "/opt/python/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line 71 in fused_rope
  File "/home/me/train.py", line 74 in <module>

Extension modules: numpy._core._multiarray_umath, torch._C
"""


def test_the_place_of_a_crash_is_in_the_stack_below_it() -> None:
    crash = "\n".join(f"[rank1]: {line}" if line else line for line in CRASH.splitlines())
    text = f'{crash}\n[rank0]:   File "/home/me/other.py", line 3 in wait\nexitcode  : -11 (pid: 1243) (SIGSEGV)\n'
    causes = found(stdin=text.encode())["causes"]
    assert isinstance(causes, list)
    assert causes[0]["evidence"][0]["text"] == (
        "Fatal Python error: Segmentation fault, at /home/me/train.py:71 in fused_rope; raised at /opt/python/lib/python3.11/ctypes/__init__.py:519 in string_at"
    )


def test_words_behind_the_first_line_of_a_message_tell_where_to_look(tmp_path: Path) -> None:
    """CPython's message begins with an empty line: really made by a spawned worker whose program is not guarded."""
    program = tmp_path / "train.py"
    program.write_text("import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, check=False, timeout=60)
    told = found(stdin=done.stderr)["unexplained"]
    assert isinstance(told, list)
    assert ["under if __name__ == '__main__'" in error["fix"] for error in told] == [True]


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("bash: line 3: accelerate: command not found\n", "shell"),
        ("libnuma: Warning: cpu argument 64-127 is out of range\n<64-127> is invalid\n", "system tool"),
        ("taskset: failed to set pid 4123's affinity: Invalid argument\n", "system tool"),
        ("Memory access fault by GPU node-1 (Agent handle: 0x55) on address 0x7f0. Reason: Page not present.\nAborted\n", "ROCm"),
    ],
)
def test_what_a_shell_and_its_tools_refuse_is_an_error_not_known(text: str, program: str) -> None:
    done = run("--format", "json", "-", stdin=text.encode())
    assert done.returncode == 3
    assert json.loads(done.stdout)["unexplained"][0]["program"] == program


def test_a_warning_that_the_gpus_cannot_be_used_is_an_error_not_known_where_nothing_explains_it() -> None:
    text = "x.py:138: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 305: new error\nFalse\n"
    done = run("--format", "json", "-", stdin=text.encode())
    assert done.returncode == 3
    assert [each["program"] for each in json.loads(done.stdout)["unexplained"]] == ["CUDA"]
