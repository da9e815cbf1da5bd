"""A GPU whose memory ran out, by what torch's message says; descriptions of changes, which quote errors; logs of nodes that differ."""

from __future__ import annotations

import io
import textwrap

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.render.diagnosis import text as text_of
from torchtune_sys.render.layout import Style

ADVICE = "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."


def _said(text: str) -> Diagnosis:
    return diagnose([InputText(name="log", excerpt=excerpt(io.BytesIO(text.encode())))])


def _first(text: str) -> str:
    causes = _said(text).causes
    return causes[0].cause if causes else ""


def _now(asked: str, total: str, free: str, held: str, allocated: str, unused: str) -> str:
    """As torch 2.2 and newer say it."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 3 has a total capacity of {total} of which {free} is free. "
        f"{held} Of the allocated memory {allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated. {ADVICE}"
    )


def _before(asked: str, total: str, allocated: str, free: str, reserved: str) -> str:
    """As torch 1.4 to 2.0 said it."""
    return f"RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity; {allocated} already allocated; {free} free; {reserved} reserved in total by PyTorch)"


MEMORY = {
    _now("8.00 GiB", "79.15 GiB", "3.00 GiB", "Process 9 has 76.10 GiB memory in use.", "50.00 GiB", "25.40 GiB"): "gpu-memory-fragmented",
    _now("2.00 GiB", "79.15 GiB", "1.00 GiB", "Process 9 has 78.10 GiB memory in use.", "77.00 GiB", "0.40 GiB"): "gpu-memory-too-small",
    _now("90.00 GiB", "79.15 GiB", "70.00 GiB", "Process 9 has 8.00 GiB memory in use.", "7.00 GiB", "0.40 GiB"): "gpu-memory-too-small",
    _now("2.00 GiB", "79.15 GiB", "1.00 GiB", "Process 9 has 40.10 GiB memory in use. Process 11 has 38.00 GiB memory in use.", "39.00 GiB", "0.40 GiB"): "gpu-memory-in-use",
    _now("2.00 GiB", "79.15 GiB", "1.00 GiB", "Process 11 has 38.00 GiB memory in use. Including non-PyTorch memory, this process has 40.10 GiB memory in use.", "39.00 GiB", "0.40 GiB"): "gpu-memory-in-use",
    _before("1.20 GiB", "23.69 GiB", "21.00 GiB", "512.00 MiB", "21.40 GiB"): "gpu-memory-too-small",
    _before("4.00 GiB", "23.69 GiB", "10.00 GiB", "512.00 MiB", "22.00 GiB"): "gpu-memory-fragmented",
    _before("1.20 GiB", "23.69 GiB", "700.00 MiB", "512.00 MiB", "800.00 MiB"): "gpu-memory-in-use",
    "torch.OutOfMemoryError: CUDA out of memory.": "gpu-memory-too-small",
    "RuntimeError: CUDA error: out of memory": "gpu-memory-in-use",
}  # fmt: skip


@pytest.mark.parametrize(("text", "cause"), MEMORY.items(), ids=range(len(MEMORY)))
def test_memory_that_ran_out_has_the_cause_that_its_sizes_tell(text: str, cause: str) -> None:
    assert _first(text) == cause
    assert _first("Traceback (most recent call last):\n" + "\n".join(textwrap.wrap(text, 80))) == cause


def test_other_processes_may_be_ranks_on_the_same_gpu() -> None:
    text = next(text for text, cause in MEMORY.items() if cause == "gpu-memory-in-use")
    assert [cause.cause for cause in _said(text).causes][:2] == ["gpu-memory-in-use", "several-ranks-on-one-gpu"]


def test_a_gpu_is_not_called_too_small_for_what_takes_little_of_it() -> None:
    held = "Process 4182 has 21.90 GiB memory in use. Including non-PyTorch memory, this process has 1.71 GiB memory in use."
    little = _said(_now("256.00 MiB", "23.64 GiB", "12.81 MiB", held, "1.30 GiB", "10.22 MiB"))
    assert [cause.cause for cause in little.causes] == ["gpu-memory-in-use", "several-ranks-on-one-gpu"]
    much = _said(next(text for text, cause in MEMORY.items() if cause == "gpu-memory-in-use"))
    assert much.causes[-1].cause == "gpu-memory-too-small"


def test_a_full_file_system_that_df_was_asked_for_decides_why_a_write_failed() -> None:
    failed = "RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 5432182528 vs 5432182416\n"
    df = "$ df -h {point}\nFilesystem      Size  Used Avail Use% Mounted on\n{source}        7.0T  7.0T     0 100% {point}\n"
    full = [each.cause for each in _said(failed + df.format(source="/dev/md0", point="/home")).causes]
    assert full == ["disk-full-or-quota"]
    for source, point in (("/dev/loop3", "/snap/core/1"), ("tmpfs", "/run/user/7"), ("shm", "/dev/shm")):
        assert not _said(df.format(source=source, point=point)).causes, point
        assert len(_said(failed + df.format(source=source, point=point)).causes) > 1, point


def test_a_directory_that_is_not_there_follows_from_its_file_system() -> None:
    missing = "RuntimeError: Parent directory /nfs/a/ckpt does not exist.\n"
    assert _first(missing) == "checkpoints-not-writable"
    assert _first(missing + "ls: cannot access '/nfs/a': Stale file handle\n") == "hung-mount"


def test_a_line_that_nccl_prints_is_nobodys_words_of_gloo() -> None:
    line = "node-b:944:1003 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<39847> failed : Connection refused"
    assert [cause.cause for cause in _said(line).causes] == ["nccl-wrong-interface"]


def test_the_first_line_says_where_the_first_cause_is_and_how_many_more_there_are() -> None:
    shm = "[rank3]: RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
    one = text_of(_said(shm), Style(width=400)).split("\n")[0]
    two = text_of(_said(shm + "[rank3]: OSError: [Errno 24] Too many open files\n"), Style(width=400)).split("\n")[0]
    assert one.endswith("(dev-shm-too-small), rank 3") and two.endswith("rank 3; 1 more cause")


QUOTED = "```\nOSError: [Errno 28] No space left on device\nvalue error: ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n```"
CHANGES = (
    f"# fix(ci): free space on the runner\n\n{QUOTED}",
    f"# [Docker] Add the driver's library to the image\n\nSeen without it:\n\n{QUOTED}",
    f"This PR prints a better message than\n\n{QUOTED}",
    f"The build stopped with\n\n{QUOTED}\n\nSigned-off-by: A B <a@b>",
    f"Fixes #123\n\nPreviously the loader printed\n\n{QUOTED}",
    f"## [1.4.0] - 2021-05-05\n\n- Fixed a bug where saving ended in\n{QUOTED}\n- Added a test",
    "\n".join(f"+{line}" for line in ["**Problem**: a run stops with", "", "", *QUOTED.split("\n"), "**Cause**: a full disk"]),
)


@pytest.mark.parametrize("text", CHANGES, ids=range(len(CHANGES)))
def test_a_change_that_quotes_an_error_accuses_no_host(text: str) -> None:
    assert not _said(text).causes
    assert not _said(text).unexplained
    assert _first(QUOTED) in ("disk-full-or-quota", "no-nvidia-driver")


@pytest.mark.parametrize(
    "text",
    [
        f"I followed [the guide](docs/install.md) and my run fails:\n{QUOTED}",
        f"Since the commit that moved us to torch 2.5 I get\n{QUOTED}",
        f"I have fixed the path, and still see\n{QUOTED}\nHow can I fix this?",
        f"# What does this mean?\n{QUOTED}\nThe PR that someone named did not help.",
        "perf: command not found\n" + QUOTED,
        f'# raise OSError("it stops there") OSError: it stops there\n{QUOTED}',
    ],
)
def test_who_reports_an_error_is_believed(text: str) -> None:
    assert _said(text).causes


DOCUMENTS = (
    f"# Errors and what they mean\n\n- [a full disk](disk.md): {QUOTED}\n",
    f"Errors\n======\n\nSee :ref:`disk-full`.\n\n.. code-block:: text\n\n   {QUOTED}\n",
    f"<!-- generated by a script -->\n# Errors\n{QUOTED}",
    f"# ci: use a writable cache\n\nThe runners mount it read-only:\n{QUOTED}",
)


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_a_document_that_quotes_an_error_accuses_no_host(text: str) -> None:
    said = _said(text)
    assert not said.causes
    assert len(said.unread) == 1
    assert _first(f"### Describe the bug\nI did what [the guide](guide.md) says.\n{QUOTED}")
    assert _first(f"# ci: it fails at random\n{QUOTED}")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a job of two hosts:\n[rank0]: ValueError: You set `--ntasks=16` in your SLURM bash script, but this variabl", "job-launch-nested-wrongly"),
        ("UDA is not availa\nI run it in the docker image and see only the CPU.", "container-toolkit-missing"),
        ("ed to allocate 216.00 MiB (GPU 0; 7.92 GiB total capacity; 69.17 MiB already allocated; 24.56 MiB free; 86.00 MiB reserved in total by PyTor", "gpu-memory-in-use"),
    ],
)  # fmt: skip
def test_what_was_cut_at_a_column_or_at_its_ends_is_read(text: str, cause: str) -> None:
    assert _first(text) == cause


def _node(name: str, said: str) -> str:
    return f"{name}:100:200 [0] NCCL INFO {said}"


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "Plugin Path : /opt/x/lib/libnccl-net.so", "nccl-plugin-differs-between-nodes"),
        ("NET/Plugin : No plugin found (libnccl-net.so), using internal implementation", "NET/Plugin: Loaded net plugin AWS Libfabric (v8)", "nccl-plugin-differs-between-nodes"),
        ("NCCL version 2.18.5+cuda12.2", "NCCL version 2.20.5+cuda12.4", "software-differs-between-nodes"),
        ("Using network IB", "Using network Socket", "ib-driver-not-loaded"),
    ],
)  # fmt: skip
def test_nodes_that_say_different_things_of_themselves_differ(one: str, other: str, cause: str) -> None:
    assert _first("\n".join((_node("a1", one), _node("a2", one), _node("a3", other)))) == cause
    assert not _said("\n".join((_node("a1", one), _node("a2", one)))).causes
