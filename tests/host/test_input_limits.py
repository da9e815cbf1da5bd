"""What a stranger's file may take: time in proportion to its size, at most 512 MiB, and no more time than --timeout gives."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import warm
from fuzz.runs import doubled
from memory import memory_mib
from torchtune_sys import evidence
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.pseudonyms import Pseudonyms
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input import limits
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.host.input.opening import open_input
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.diagnosis import UnreadSource
from torchtune_sys.preflight.joint.names import expanded

SHAPES: dict[str, Callable[[int], str]] = {
    "blanks": lambda n: " " * n,
    "blanks before a word": lambda n: " " * (n - 1) + "x",
    "one letter": lambda n: "a" * n,
    "digits": lambda n: "1" * n,
    "numbers": lambda n: "1 " * (n // 2),
    "brackets": lambda n: "[" * n,
    "angles": lambda n: "<" * n,
    "dashes": lambda n: "-" * n,
    "at signs": lambda n: "a@b:" * (n // 4),
    "equals": lambda n: "a=" * (n // 2),
    "escapes": lambda n: "\x1b[" * (n // 2),
    "empty lines": lambda n: "\n" * n,
    "quoted lines": lambda n: "> " * (n // 2),
    "nested XML": lambda n: "<nvidia_smi_log>" * (n // 16),
    "nested JSON": lambda n: '{"blockdevices":' * (n // 16),
    "headers of lspci": lambda n: "00:00.0 VGA compatible controller: NVIDIA\n" * (n // 42),
    "headers of nvidia-smi": lambda n: "=NVSMI LOG=\n" * (n // 12),
    "Xid lines": lambda n: "NVRM: Xid (PCI:0000:1b:00): 79, x\n" * (n // 34),
    "reports": lambda n: "PyTorch version: 2\n" * (n // 19),
    "keys": lambda n: "-----BEGIN PRIVATE KEY-----\n" * (n // 28),
    "passwords": lambda n: "--password " * (n // 11),
    "letters after host": lambda n: "host " + "a" * (n - 5),
    "hosts": lambda n: "".join(f"node gpu{number}x:\n" for number in range(n // 14)),
    "names with slashes": lambda n: "/a" * (n // 2),
    "fields with colons": lambda n: "ab:" * (n // 3),
    "ranks": lambda n: "[rank0]:" * (n // 8),
    "JSON lines": lambda n: '{"log":"RuntimeError: x\\n"}\n' * (n // 28),
    "time-outs": lambda n: "".join(
        f"[rank{r}]: WorkNCCL(SeqNum={r}, OpType=ALLREDUCE, Timeout(ms)=9) ran for 9 milliseconds before timing out.\n"
        for r in range(n // 96)
    ),
    "errors": lambda n: "".join(f"RuntimeError: thing {number} failed\n" for number in range(n // 30)),
    "stacks": lambda n: 'Thread 0x7f (most recent call first):\n  File "/a.py", line 3 in f\n' * (n // 68),
}


def diagnosed(text: str) -> object:
    return diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode("utf-8", "replace"))))])


def replaced(text: str) -> object:
    names = Pseudonyms()
    return [names.text(line) for line in text.split("\n")]


READERS: dict[str, Callable[[str], object]] = {
    "evidence": lambda text: evidence.read(text, "x"),
    "secrets": scrubbed,
    "diagnose": diagnosed,
    "share": replaced,
}


def seconds(read: Callable[[str], object], text: str) -> float:
    """Of this thread's processor time, the least of three."""
    found = []
    for _ in range(3):
        started = time.thread_time()
        read(text)
        found.append(time.thread_time() - started)
    return min(found)


OF_LOGS = tuple(SHAPES)[tuple(SHAPES).index("letters after host") :]
PAIRS = [
    (reader, shape)
    if reader in ("evidence", "secrets") or shape in OF_LOGS
    else pytest.param(reader, shape, marks=pytest.mark.exhaustive)
    for reader in READERS
    for shape in SHAPES
]


@pytest.mark.sampled(8, 26)
@pytest.mark.parametrize(("reader", "shape"), PAIRS)
def test_four_times_the_text_takes_about_four_times_the_time(reader: str, shape: str) -> None:
    read, grow = READERS[reader], SHAPES[shape]
    read("PyTorch version: 2.1\n")  # imports, and patterns are compiled
    size = 10_000
    once, twice, four = (seconds(read, grow(size * factor)) for factor in (1, 2, 4))
    assert four < 10 * max(once, 0.002), f"{once:.4f} {twice:.4f} {four:.4f} s at 1, 2 and 4 times {size}: quadratic would be 16"


@pytest.mark.parametrize("piece", ["tt[t[", "][", "x,[", "a[1,"])
def test_a_list_of_nodes_takes_time_in_proportion(piece: str) -> None:
    """Found by its growth in fuzzing: a coordinator's list of 64 KiB with brackets that are not closed took 1.6 s, one of 4 MiB an hour and a half."""
    once, four = (seconds(expanded, piece * (size // len(piece))) for size in (32_768, 131_072))
    assert four < 10 * max(once, 0.002), f"{once:.4f} and {four:.4f} s"


def test_the_measure_tells_a_quadratic_reader() -> None:
    import re

    def slow(text: str) -> object:
        return re.sub(r"[ \t]+$", "", text)

    grow = SHAPES["blanks before a word"]
    assert seconds(slow, grow(8_000)) > 10 * seconds(slow, grow(2_000)) > 0


DEEP = 200
"""Levels: who walks through all of a doubled value is never done."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["pg_id", "profiling_name", "state", "rank", "version", "is_p2p"])
def test_a_dump_in_which_a_value_is_doubled_again_and_again(tmp_path: Path, place: str) -> None:
    """A pickle names a value that is there already (BINGET): 154 bytes were a text of 4 MB, and each byte more was twice as much."""
    (tmp_path / "d.pickle").write_bytes(doubled(DEEP, place))
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom torchtune_sys.diagnosis.diagnose import diagnose\n"
    code += (
        f"from torchtune_sys.host.input.collection import collected\nprint(len(str(diagnose(collected([{str(tmp_path)!r}])))))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 5000


@pytest.mark.parametrize("level", [b"\x86", b"\x85"])
def test_a_key_that_never_ends_is_refused(level: bytes) -> None:
    """Hashing the tuple would take for ever, or the whole stack of C."""
    key = b"K\x01" + b"".join(b"r" + number.to_bytes(4, "little") + (b"j" + number.to_bytes(4, "little")) * (level == b"\x86") + level
                              for number in range(100_000 if level == b"\x85" else DEEP))  # fmt: skip
    for data in (b"\x80\x02}" + key + b"K\x01s.", b"\x80\x02}(" + key + b"K\x01u.", b"\x80\x02(" + key + b"K\x01d."):
        with pytest.raises(ValueError, match="no plain word"):
            plain_data(data)


DUMPS = {
    "empty dicts": lambda: b"\x80\x02(" + b"}" * 5_000_000 + b"l.",
    "lists in lists": lambda: b"\x80\x02" + b"](" * 2_500_000 + b"l.",
    "the memo": lambda: b"\x80\x04(" + b"}\x94" * 2_500_000 + b"l.",
    "one value in the memo": lambda: b"\x80\x04}" + b"\x94" * 5_000_000 + b".",
    "a wide text": lambda: (
        b"\x80\x02X" + (60 << 20).to_bytes(4, "little") + "\U0001f600".encode() + b"a" * ((60 << 20) - 4) + b"."
    ),
    "marks": lambda: b"\x80\x02" + b"(" * (30 << 20) + b"l.",
}


MANY = pytest.mark.exhaustive
FIRST = ("empty dicts", "the memo", "a wide text")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name if name in FIRST else pytest.param(name, marks=MANY) for name in DUMPS])
def test_no_dump_takes_more_than_512_mib(tmp_path: Path, name: str) -> None:
    (tmp_path / "d.pickle").write_bytes(DUMPS[name]())
    assert memory_mib("diagnose", str(tmp_path / "d.pickle")) < 512


@pytest.mark.parametrize(
    "text",
    ["a[1-99999]," * 5000, f"a[{'0-99999,' * 5000}1]", "a[1-99][1-99][1-99][1-99]", f"a[{'9' * 5000}-{'9' * 5001}]"],
    ids=range(4),
)
def test_a_list_of_nodes_takes_no_memory_without_limit(text: str) -> None:
    code = f"import resource, sys; sys.path[:0] = {sys.path!r}; resource.setrlimit(resource.RLIMIT_DATA, (128 << 20,) * 2)\n"
    code += "from torchtune_sys.preflight.joint.names import expanded\nprint(len(expanded(sys.stdin.read())))"
    done = subprocess.run([sys.executable, "-I", "-c", code], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and int(done.stdout) < 10, done.stderr[-300:]


def zip_of(entries: int) -> bytes:
    """An archive whose list has so many entries, and nothing else."""
    one = b"PK\x01\x02" + bytes(24) + (1).to_bytes(2, "little") + bytes(16) + b"a"
    size = len(one) * entries
    return one * entries + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, size, 0, 0)


def test_an_archive_with_a_long_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04" + bytes(26) + zip_of(1_000_000))
    (found,) = collected([str(tmp_path / "x.zip")])
    assert isinstance(found, UnreadSource) and "more than 100,000 entries" in found.why
    assert memory_mib("diagnose", str(tmp_path / "x.zip")) < 512


def zipped(*members: tuple[bytes, bytes]) -> bytes:
    """As Python's own module would write it, had it names of any kind."""
    entries = listed = b""
    for name, data in members:
        told = (zlib.crc32(data), len(data), len(data), len(name))
        listed += struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, *told, 0, 0, 0, 0, 0, len(entries)) + name
        entries += struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, 0, 0, 0, 0, *told, 0) + name + data
    count = len(members)
    return entries + listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(listed), len(entries), 0)


def test_an_entry_without_a_name_costs_no_other_its_reading(tmp_path: Path) -> None:
    """Found by atheris: an internal error, since Python's own is_dir() looked at the last letter."""
    (tmp_path / "x.zip").write_bytes(zipped((b"", b"RuntimeError: none"), (b"a/", b""), (b"b.log", b"RuntimeError: there")))
    found = str(list(collected([str(tmp_path / "x.zip")])))
    assert "RuntimeError: none" in found and "RuntimeError: there" in found


def wide_window() -> bytes:
    """96 bytes of xz whose block asks for a window of 4 GiB: the property byte of LZMA2, and the header's sum."""
    import lzma

    found = bytearray(lzma.compress(b"PyTorch version: 2.1\n" * 10, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]))
    found[found.index(b"\x21\x01", 12) + 2] = 40
    end = 12 + (found[12] + 1) * 4
    found[end - 4 : end] = struct.pack("<I", zlib.crc32(found[12 : end - 4]))
    return bytes(found)


def test_a_window_of_gigabytes_costs_no_other_text_its_diagnosis(tmp_path: Path) -> None:
    """The whole command ended for want of memory, with status 3."""
    (tmp_path / "x.xz").write_bytes(wide_window())
    (tmp_path / "a.log").write_text("RuntimeError: CUDA error: out of memory\n")
    argv = [*warm.PROGRAM, "diagnose", str(tmp_path / "a.log"), str(tmp_path / "x.xz")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "need more memory than is available" in done.stdout, done.stdout + done.stderr


def tar(*names: str, pax: bool = True) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) as file:
        for name in names:
            file.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("deep.tar", lambda: tar("proc/" + "a/" * 200 + "x"), "directories deep"),
        ("long.tar", lambda: tar("proc/" + "a" * 5000), "5,005 characters"),
        ("bomb.gz", lambda: gzip.compress(bytes(limits.FILE_LIMIT + 1), 1), "unpacks to more than 128 MiB"),
        ("letters", lambda: b"a" * (limits.TEXT_LIMIT + 1), "text of more than 16 MiB"),
        ("lines", lambda: b"a\n" * (limits.LINE_LIMIT + 1), "more than 500,000 lines"),
        ("values.json", lambda: b'{"files":{"a":[' + b'"",' * limits.VALUE_LIMIT + b'""]}}', "larger than a recording may be"),
    ],
)
def test_what_is_too_much_is_refused_with_the_limit(tmp_path: Path, name: str, data: Callable[[], bytes], words: str) -> None:
    (tmp_path / name).write_bytes(data())
    with pytest.raises(UnreadableInput, match=words):
        open_input(str(tmp_path / name))


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("PyTorch version: 2.11.0\n" + "x" * (limits.LINE_LENGTH * 2) + "\n")
    assert max(map(len, open_input(str(tmp_path / "x.txt")).text.split("\n"))) <= limits.LINE_LENGTH  # type: ignore[union-attr]


MEMORY = {
    "deep.tar": lambda: tar("proc/" + "a/" * 2000 + "x"),
    "many.tar.gz": lambda: gzip.compress(b"".join(_header(f"proc/{number}") for number in range(150_000)) + bytes(1024), 1),
    "letters": lambda: b"a" * (limits.TEXT_LIMIT - 1),
    "bomb.gz": lambda: gzip.compress(bytes(limits.FILE_LIMIT + 1), 1),
    "values.json": lambda: b'{"files":{"a":[' + b'"",' * (limits.VALUE_LIMIT - 9) + b'""]}}',
    "objects.json": lambda: b'{"answers":{"nvml":[' + b"{}," * (limits.VALUE_LIMIT // 2 - 9) + b"{}]}}",
}


def _header(name: str) -> bytes:
    return tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MEMORY)
def test_no_input_takes_more_than_512_mib(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(MEMORY[name]())
    assert memory_mib("check", "-q", "--from", str(tmp_path / name)) < 512


def test_a_parser_that_does_not_come_back_is_ended(tmp_path: Path) -> None:
    """One call of a pattern that takes minutes, in which Python runs no other thread and no signal handler."""
    code = (
        "import re, sys; from torchtune_sys import evidence; from torchtune_sys.cli.main import main; "
        "evidence.read = lambda *a: re.match('(a|a)*b', 'a' * 60); main()"
    )
    (tmp_path / "x.txt").write_text("PyTorch version: 2.11.0\n")
    started = time.monotonic()
    argv = [sys.executable, "-c", code, "check", "--from", str(tmp_path / "x.txt"), "--timeout", "4"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, "within 4 s" in done.stderr) == (3, True), done.stderr
    assert 4 < time.monotonic() - started < 60


def test_the_kernels_log_is_not_waited_for_without_end() -> None:
    if os.getuid() or not os.access("/proc/kmsg", os.R_OK):
        pytest.skip("needs root to open /proc/kmsg")
    argv = [sys.executable, "-m", "torchtune_sys", "check", "-q", "--from", "/proc/kmsg", "--timeout", "3"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (2, 3), done.stderr
