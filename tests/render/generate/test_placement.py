"""Seats as commands and as a wrapper script: the real numactl, shells and shellcheck take them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.placement import Placement, RankPlacement
from torchtune_sys.render.generate import placement
from torchtune_sys.render.layout import Style

CPUS = sorted(os.sched_getaffinity(0))
HOSTILE = ("$(touch evil)", "`touch evil`", "a'b\"c", "back\\", "two\nlines", "; touch evil", "--help", "", "é", "*")
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
numactl = pytest.mark.skipif(shutil.which("numactl") is None, reason="numactl is not installed")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


def seat(rank: int = 0, cpus: tuple[int, ...] = (CPUS[0],), memory: str = "", gpu: str = "") -> RankPlacement:
    return RankPlacement(
        rank=rank, gpu=gpu, gpu_index=0 if gpu else None, node=0, cpus=CpuSet(cpus), memory=memory, memory_node=0 if memory else None, nic=""
    )  # fmt: skip


def two(gpu: str = "", notes: tuple[str, ...] = ()) -> Placement:
    return Placement(seats=(seat(gpu=gpu), seat(1, (CPUS[-1],), gpu=gpu)), notes=notes)


@numactl
@pytest.mark.parametrize("memory", ["", "bind", "prefer"])
def test_numactl_takes_the_command_and_the_process_has_what_it_says(memory: str) -> None:
    if memory and not Path("/sys/devices/system/node/node0").exists():
        pytest.skip("this kernel has no nodes")
    tell = "import os; print(sorted(os.sched_getaffinity(0)), open('/proc/self/numa_maps').readline().split()[1])"
    done = subprocess.run(
        [*placement.command(seat(memory=memory)), "python3", "-c", tell], capture_output=True, text=True, timeout=20
    )
    if memory and "not permitted" in done.stderr:
        pytest.skip("memory policies are refused here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("] ")[0] == f"[{CPUS[0]}"
    policy = done.stdout.split("] ")[1].strip()
    assert policy.startswith({"": "default", "bind": "bind:0", "prefer": "prefer"}[memory])


@numactl
@pytest.mark.parametrize("shell", SHELLS)
def test_the_printed_commands_run_in_a_shell_with_any_arguments(shell: str, tmp_path: Path) -> None:
    program = tmp_path / "tell me"
    program.write_text('#!/bin/sh\nprintf "%s\\0" "$LOCAL_RANK" "$@"\n')
    program.chmod(0o755)
    text = placement.commands(two("$(touch evil)\ntouch evil", ("note\ntouch evil",)), (str(program), *HOSTILE))
    done = subprocess.run([shell, "-euc", text], cwd=tmp_path, capture_output=True, timeout=20)
    assert done.stderr == b""
    assert done.stdout.decode().split("\0")[:-1] == ["0", *HOSTILE, "1", *HOSTILE]
    assert not (tmp_path / "evil").exists()


def script(folder: Path, host: str = "trainer-01", gpu: str = "0000:1b:00.0") -> Path:
    path = folder / "bind.sh"
    path.write_text(placement.wrapper(two(gpu), host))
    path.chmod(0o755)
    return path


@numactl
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("variables", "cpu"),
    [
        ({"LOCAL_RANK": "1"}, CPUS[-1]),
        ({"LOCAL_RANK": "0", "SLURM_LOCALID": "1"}, CPUS[0]),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, CPUS[-1]),
        ({"SLURM_LOCALID": "1"}, CPUS[-1]),
    ],
)
def test_the_wrapper_binds_the_rank_that_its_starter_names(
    shell: str, variables: dict[str, str], cpu: int, tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"], **variables}
    argv = [
        shell,
        str(script(tmp_path)),
        "python3",
        "-c",
        "import os, sys; print(sorted(os.sched_getaffinity(0)), sys.argv[1:])",
        "a b",
        "$x",
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20)
    assert done.stdout == f"[{cpu}] ['a b', '$x']\n", done.stderr
    ended = subprocess.run([shell, str(script(tmp_path)), "sh", "-c", "exit 77"], env=env, timeout=20)
    assert ended.returncode == 77


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("rank", "arguments", "words"),
    [
        (None, ["true"], "no local rank"),
        ("2", ["true"], "made for 2 ranks, and this is rank 2"),
        ("$(id)", ["true"], "$(id)"),
        ("0", [], "which program"),
    ],
)
def test_the_wrapper_refuses_what_it_was_not_made_for(
    shell: str, rank: str | None, arguments: list[str], words: str, tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"], **({} if rank is None else {"LOCAL_RANK": rank})}
    done = subprocess.run([shell, str(script(tmp_path)), *arguments], env=env, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert words in done.stderr


def test_the_wrapper_says_what_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "bind.sh"
    script.write_text(placement.wrapper(two(), ""))
    done = subprocess.run(
        ["/bin/sh", str(script), "true"], env={"LOCAL_RANK": "1", "PATH": ""}, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 127 and "bind.sh: numactl is not installed here" in done.stderr


@settings(max_examples=15, deadline=None)
@given(host=TEXT, gpu=TEXT)
@example(host="x\ntouch evil\n", gpu="$(touch evil)\r;; *) touch evil")
def test_names_of_the_host_stay_comments(tmp_path_factory: pytest.TempPathFactory, host: str, gpu: str) -> None:
    folder = tmp_path_factory.mktemp("wrapper")
    path = script(folder, host, gpu)
    lines = path.read_text().splitlines()
    plain = script(folder, "x", "x").read_text().splitlines()
    assert [line.partition("#")[0] for line in lines] == [line.partition("#")[0] for line in plain]


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "-o", "all", str(script(tmp_path))], capture_output=True, text=True, timeout=60)
    assert done.stdout == ""


def test_commands_without_a_program_name_an_example() -> None:
    line = placement.commands(two(), ()).splitlines()[-1]
    assert shlex.split(line)[-2:] == ["python", "train.py"]


def test_the_table_says_what_is_bound() -> None:
    text = placement.table(Placement(seats=(seat(memory="prefer"),), notes=("a note",)), Style(width=80, color=False), "beside")
    assert text.startswith("1 local rank\n")
    assert f"CPUs {CPUS[0]}, memory preferably of node 0; no GPU" in text
    assert "a note" in text
    assert text.endswith("torchrun beside\n")
