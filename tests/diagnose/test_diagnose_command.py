"""The command: forms of input, exit statuses, JSON."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import warm
from conftest import assert_valid

BUS = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"


def run(*args: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*warm.PROGRAM, "diagnose", *map(str, args)], input=stdin, capture_output=True)


def found(*args: str | Path, stdin: bytes = b"") -> dict[str, object]:
    done = run(*args, "--format", "json", stdin=stdin)
    value: dict[str, object] = json.loads(done.stdout)
    assert_valid(value, "diagnosis")
    return value


def names(value: dict[str, object]) -> list[str]:
    causes = value["causes"]
    assert isinstance(causes, list)
    return [cause["cause"] for cause in causes]


def test_a_cause_is_named_with_its_line_and_exit_1() -> None:
    done = run(stdin=b"epoch 1\n" + BUS.encode())
    assert done.returncode == 1
    first, *rest = done.stdout.decode().splitlines()
    assert "dev-shm-too-small" in first
    assert any("standard input:2: " in row for row in rest)


def test_nothing_is_said_twice(tmp_path: Path) -> None:
    """Of one cause the first line names it, its rank and how sure it is; of several, each has its name in brackets, as findings have."""
    log = tmp_path / "rank3.log"
    log.write_text(BUS)
    rows = run(log).stdout.decode().split("\n")
    assert rows[0] == "likely: /dev/shm is too small (dev-shm-too-small), rank 3" and rows[1].strip().startswith(f"{log}:1:")
    said = "\n".join(rows[1:])
    assert "likely" not in said and "is too small" not in said and "rank 3\n" not in said, said
    both = run(stdin=b"CUDA error: out of memory\n").stdout.decode()
    assert "possible   Other processes are using the GPU's memory [gpu-memory-in-use]\n" in both, both


def test_where_to_read_on_is_said_last(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(BUS)
    *rest, last = run(tmp_path / "train.log", tmp_path / "none.log").stdout.decode().splitlines()
    assert last == "more about a cause: torchtune-sys explain dev-shm-too-small" and any("not read" in row for row in rest)


def test_nothing_wrong_is_exit_0() -> None:
    done = run(stdin=b"epoch 1 loss 0.3\nsaved\n")
    assert (done.returncode, b"no failure was found" in done.stdout) == (0, True)


def test_an_error_that_nothing_knows_is_quoted_with_its_place_and_exit_3() -> None:
    text = b'Traceback (most recent call last):\n  File "/a/train.py", line 7, in main\n    x()\nfoo.BarError: the flux is low\n'
    done = run(stdin=text)
    assert done.returncode == 3
    assert b"error not known" in done.stdout.splitlines()[0]
    value = found(stdin=text)
    assert value["causes"] == []
    assert value["unexplained"] == [
        {
            "source": "standard input",
            "line": 4,
            "text": "foo.BarError: the flux is low",
            "program": "foo",
            "place": "/a/train.py:7 in main",
            "fix": "",
            "ask": "",
            "hosts": [],
            "ranks": [],
        }
    ]


def test_what_cannot_be_read_is_told_and_exit_3(tmp_path: Path) -> None:
    done = run(tmp_path / "none.log")
    assert done.returncode == 3
    assert b"No such file" in done.stdout
    assert run("--format", "yaml").returncode == 2


def _tar(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        entry = tarfile.TarInfo("../../logs/a.log")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("/etc/../a.log", data)
    return out.getvalue()


@pytest.mark.sampled(3, 4)
@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress,
        _tar,
        _zip,
        lambda data: gzip.compress(_tar(data)),
        lambda data: _zip(_tar(data)),
        lambda data: data.decode().encode("utf-16"),
    ],
    ids=["gz", "tar", "zip", "tar.gz", "tar in zip", "utf-16"],
)
def test_packed_text_is_read_without_unpacking_anything(packed: object, tmp_path: Path) -> None:
    assert callable(packed)
    place = tmp_path / "in"
    place.mkdir()
    (place / "given").write_bytes(packed(BUS.encode()))
    assert names(found(place / "given")) == ["dev-shm-too-small"]
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "given"]


def test_a_directory_is_read_whole_and_a_picture_in_it_told(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("fine\n")
    (tmp_path / "rank1.log").write_text(BUS)
    (tmp_path / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    value = found(tmp_path)
    assert names(value) == ["dev-shm-too-small"]
    assert [each["source"] for each in value["unread"]] == [str(tmp_path / "shot.png")]  # type: ignore[index,union-attr,call-overload]


def test_of_a_sosreport_the_files_of_the_kernel_are_left_to_check(tmp_path: Path) -> None:
    report = tmp_path / "sosreport of n1"
    for place, text in (("proc/sys/vm/swappiness", "60\n"), ("sys/class/net/eth0/mtu", "1500\n"), ("var/log/train.log", BUS)):
        (report / place).parent.mkdir(parents=True)
        (report / place).write_text(text)
    told = found(report)
    assert names(told) == ["dev-shm-too-small"]
    assert [each["why"].partition(": ")[2] for each in told["unread"]] == [f"torchtune-sys check --from '{report}'"]  # type: ignore[index,union-attr,call-overload]


def test_a_secret_goes_into_no_output() -> None:
    token = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"
    text = f"HF_TOKEN={token} RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n{'x' * 385} {token} Fatal Python error: {token}\n"
    for args in ((), ("--format", "json"), ("--symptoms",)):
        done = run(*args, stdin=text.encode())
        assert done.returncode == 1
        assert b"hf_" not in done.stdout


@pytest.mark.long
def test_memory_stays_bounded_however_long_the_log(tmp_path: Path) -> None:
    place = tmp_path / "long.log"
    with place.open("w") as file:
        for _ in range(60):
            file.write("step 1 loss 0.31 tokens 81920 error 0.1\n" * 50_000)
        file.write(BUS)
    code = "import sys; from torchtune_sys.cli.main import run; run(['diagnose', sys.argv[1]]); print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, text=True)
    assert "dev-shm-too-small" in done.stdout
    most = next(
        int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("VmHWM:")
    )  # getrusage's has its parent's
    assert most < 200 << 10, "of 115 MB no more than 200 MiB are held"
