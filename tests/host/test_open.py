"""What people give to --from and --root: trees, archives, recordings, text, and what is none of these."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host
from torchtune_sys.host.input import archive, reading
from torchtune_sys.host.input.limits import EXTENDED_LIMIT
from torchtune_sys.host.input.opening import PastedText, open_host, open_input
from torchtune_sys.host.input.tarball import members
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.model.values import Missing, Why

FILES = {"proc/cpuinfo": "processor : 0\n", "proc/self/status": "Name: x\n", "sys/class/net/eth0/mtu": "1500\n"}


def why(found: object) -> Why:
    assert isinstance(found, Missing), found
    return found.why


def host(path: Path | str) -> Host:
    found = open_input(str(path))
    assert isinstance(found, Host)
    return found


def refusal(path: Path | str, **more: object) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_input(str(path), **more)  # type: ignore[arg-type]
    assert caught.value.todo, "an error says what to do"
    return str(caught.value)


def grow(top: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar(*entries: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as file:
        for info, content in entries:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tree_tar(prefix: str = "", **more: int) -> bytes:
    return tar(*((member(prefix + name), text.encode()) for name, text in FILES.items()), **more)


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- a mounted root


def test_root_keeps_links_inside(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    root = grow(tmp_path / "root", {"etc/real": "inside", "usr/lib/os-release": "ID=x\n", "proc/x": ""})
    for name, target in {
        "etc/absolute": "/etc/real",
        "etc/os-release": "../usr/lib/os-release",
        "etc/climb": "../../../../outside",
        "etc/out": str(tmp_path / "outside"),
        "etc/loop": "loop",
        "usr/etc": "/etc",
    }.items():
        (root / name).symlink_to(target)
    seen = open_host(root=str(root))
    assert seen.text("/etc/absolute") == seen.text("/usr/etc/absolute") == "inside"
    assert seen.text("/etc/os-release") == "ID=x\n" and seen.real("/etc/os-release") == "/usr/lib/os-release"
    assert seen.link("/etc/absolute") == "/etc/real"
    assert why(seen.link("/etc/real")) is Why.NOT_SUPPORTED
    for path in ("/etc/climb", "/etc/out", "/../outside", "/etc/../../outside"):
        assert why(seen.text(path)) is Why.ABSENT
    for look in (seen.text, seen.names, seen.stat, seen.real, seen.space):
        assert why(look("/etc/loop")) is Why.FAILED
    assert "etc" in seen.names("/usr")


def test_a_chain_of_forty_links_does_not_lead_out(tmp_path: Path) -> None:
    """The forty-first link would be followed by the kernel, and to the real /."""
    (tmp_path / "outside").write_text("secret")
    root = grow(tmp_path / "root", {"etc/x": ""})
    (root / "etc" / "l60").symlink_to(str(tmp_path))
    for number in range(60):
        (root / "etc" / f"l{number}").symlink_to(f"l{number + 1}")
    for start in range(15, 60):
        assert isinstance(open_host(root=str(root)).text(f"/etc/l{start}/outside"), Missing)


def test_what_a_root_does_not_have(tmp_path: Path) -> None:
    root = grow(tmp_path, {"etc/os-release": "ID=x\n"})
    (root / "proc").mkdir()
    seen = open_host(root=str(root))
    assert why(seen.text("/etc/none")) is Why.ABSENT
    assert why(seen.text("/proc/meminfo")) is Why.NOT_RECORDED
    assert why(seen.names("/sys/class/net")) is Why.NOT_RECORDED
    assert {why(seen.run(("true",))), why(seen.env()), why(seen.ask("nvml"))} == {Why.NOT_RECORDED}
    assert not isinstance(seen.space("/etc"), Missing)
    (root / "proc" / "meminfo").write_text("")
    assert why(open_host(root=str(root)).text("/proc/none")) is Why.ABSENT


def test_a_root_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(UnreadableInput):
            open_host(root=str(path))
    with pytest.raises(UnreadableInput):
        open_host(from_="x", root="/")


# --- copied trees and archives


def packed(name: str, data: bytes) -> bytes:
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    return pack.get(Path(name).suffix, bytes)(data)


@pytest.mark.parametrize("prefix", ["", "./", "/", "host/", "./a/b/", "odd name+1/", "/home/me/x/y/z/"])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tar.bz2", "x.tar.xz", "no-suffix"])
def test_archives(tmp_path: Path, name: str, prefix: str) -> None:
    seen = host(put(tmp_path / name, packed(name, tree_tar(prefix))))
    assert seen.text("/proc/cpuinfo") == "processor : 0\n"
    assert seen.names("/sys/class/net") == ("eth0",)
    assert seen.number("/sys/class/net/eth0/mtu") == 1500
    assert why(seen.text("/proc/meminfo")) is Why.NOT_RECORDED
    assert why(seen.text("/proc/self")) is Why.FAILED
    assert {why(seen.run(("true",))), why(seen.env()), why(seen.ask("uname")), why(seen.space("/"))} == {Why.NOT_RECORDED}


@pytest.mark.parametrize("prefix", ["", "a", "a/b", "home/me/tickets/4711/node-3"])
def test_copied_trees(tmp_path: Path, prefix: str) -> None:
    grow(tmp_path / prefix)
    seen = host(tmp_path)
    assert seen.text("/proc/cpuinfo") == "processor : 0\n" and seen.names("/proc") == ("cpuinfo", "self")
    assert why(seen.text("/etc/os-release")) is Why.NOT_RECORDED


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_links_in_each_format(tmp_path: Path, format: int) -> None:
    deep = "sys/devices/" + "/".join(f"pci{number:04}" for number in range(20))
    entries = [(member(f"{deep}/mtu"), b"9\n"), (member("proc/x"), b"1")]
    if format != tarfile.USTAR_FORMAT:
        entries.append((member("sys/link", tarfile.SYMTYPE, f"../{deep}"), b""))
    seen = host(put(tmp_path / "x.tar", tar(*entries, format=format)))
    assert seen.number(f"/{deep}/mtu") == 9
    if format != tarfile.USTAR_FORMAT:
        assert seen.number("/sys/link/mtu") == 9 and seen.real("/sys/link") == f"/{deep}"


def test_strange_members(tmp_path: Path) -> None:
    entries = [
        (member("h/proc/first"), b"old"),
        (member("h/proc/first"), b"new"),
        (member("h/proc/hard", tarfile.LNKTYPE, "h/proc/first"), b""),
        (member("h/proc/dangling", tarfile.LNKTYPE, "h/proc/none"), b""),
        (member("h/proc/absolute", tarfile.SYMTYPE, "/proc/first"), b""),
        (member("h/proc/climb", tarfile.SYMTYPE, "../../../../proc/first"), b""),
        (member("h/proc/loop", tarfile.SYMTYPE, "loop"), b""),
        (member("h/proc/locked", mode=0), b"readable"),
        (member("h/dev/nvidia0", tarfile.CHRTYPE, devmajor=195, devminor=0, mode=0o666), b""),
        (member("h/proc/fifo", tarfile.FIFOTYPE), b""),
        (member("h/sys/padded"), b"1\n" + b"\0" * 4094),
        (member("h/sys/dir/", tarfile.DIRTYPE), b""),
        (member("../escape"), b"x"),
        (member("h/sys/\udcff"), b"x"),
    ]
    seen = host(put(tmp_path / "x.tar", tar(*entries)))
    assert seen.text("/proc/first") == seen.text("/proc/hard") == seen.text("/proc/absolute") == seen.text("/proc/climb") == "new"
    assert why(seen.text("/proc/dangling")) is Why.NOT_RECORDED
    assert why(seen.text("/proc/loop")) is Why.FAILED and why(seen.text("/proc/fifo")) is Why.FAILED
    assert seen.text("/proc/locked") == "readable"
    node = seen.stat("/dev/nvidia0")
    assert not isinstance(node, Missing) and (node.special, node.mode) == ("195:0", 0o020666)
    assert seen.number("/sys/padded") == 1  # tar fills up with zeros what sysfs promised and did not deliver
    assert seen.names("/sys/dir") == () and why(seen.names("/sys/padded")) is not Why.ABSENT
    assert "first" in seen.names("/proc")


def test_an_archive_that_gnu_tar_wrote(tmp_path: Path) -> None:
    grow(tmp_path / "host")
    (tmp_path / "host/sys/class/net/eth1").symlink_to("eth0")
    subprocess.run(["tar", "-C", str(tmp_path), "-cSzf", str(tmp_path / "x.tgz"), "host"], check=True, timeout=30)
    assert host(tmp_path / "x.tgz").number("/sys/class/net/eth1/mtu") == 1500


def test_archives_in_an_archive_or_directory_are_named(tmp_path: Path) -> None:
    """A must-gather holds one for each node, a support case the archives of several hosts."""
    words = refusal(put(tmp_path / "x.tar", tar((member("nodes/a/sysinfo.tgz"), b"x"), (member("nodes/b/sysinfo.tgz"), b"x"))))
    assert "but archives (nodes/a/sysinfo.tgz, nodes/b/sysinfo.tgz)" in words
    assert "but archives (x.tar)" in refusal(tmp_path)


def test_compressed_in_other_ways(tmp_path: Path) -> None:
    old = lzma.compress(tree_tar(), format=lzma.FORMAT_ALONE)
    assert host(put(tmp_path / "x.tar.lzma", old)).number("/sys/class/net/eth0/mtu") == 1500
    twice = gzip.compress(gzip.compress(tree_tar()))
    assert host(put(tmp_path / "x.tgz", twice)).number("/sys/class/net/eth0/mtu") == 1500


def test_a_tree_that_lay_deep_is_named(tmp_path: Path) -> None:
    grow(tmp_path / "case/4711/node-3")
    assert host(tmp_path / "case").origin == "tree case: 4711/node-3"
    assert host(tmp_path / "case/4711").origin == "tree 4711"


def test_cut_and_damaged_archives(tmp_path: Path) -> None:
    plain = tree_tar("host/")
    for name in ("x.tar.gz", "x.tar.bz2", "x.tar.xz"):
        data = packed(name, plain)
        assert "damaged or cut off" in refusal(put(tmp_path / name, data[: len(data) // 2]))
    assert "damaged or truncated" in refusal(put(tmp_path / "cut.tar", plain[:700]))
    assert "damaged or truncated" in refusal(put(tmp_path / "endless.tar", plain[:1024]))
    spoilt = bytearray(plain)
    spoilt[1024 + 3] ^= 0xFF
    assert "no tar header" in refusal(put(tmp_path / "spoilt.tar", bytes(spoilt)))


def test_every_cut_of_an_archive_is_an_answer() -> None:
    data = tree_tar()
    for length in range(0, len(data), 97):
        with contextlib.suppress(ValueError):
            list(members(reading.Source(io.BytesIO(data[:length]).read, "x", "is larger than")))


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FILE_LIMIT", 1 << 20)
    assert "unpacks to more than 1 MiB" in refusal(put(tmp_path / "bomb.gz", gzip.compress(bytes(5 << 20))))
    assert "larger than 1 MiB" in refusal(put(tmp_path / "large", b"x" * (2 << 20)))
    monkeypatch.setattr(archive, "MEMBER_LIMIT", 2)
    assert "more than 2 entries" in refusal(put(tmp_path / "many.tar", tree_tar()))


def test_the_zeros_of_sysfs_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tar writes the 4,096 bytes that a file of /sys claims to have: the tree of one server takes hundreds of MiB."""
    monkeypatch.setattr(reading, "FILE_LIMIT", 1 << 20)
    monkeypatch.setattr(archive, "FILE_LIMIT", 1 << 20)
    files = [member(f"sys/module/m{n}/parameters/x") for n in range(400)]
    data = tar((member("proc/cpuinfo"), b"processor : 0\n"), *((file, b"1\n".ljust(4096, b"\0")) for file in files))
    assert len(data) > 1 << 20
    for name in ("x.tar", "x.tar.gz", "x.tar.bz2", "x.tar.xz"):
        found = host(put(tmp_path / name, packed(name, data)))
        assert found.text("/sys/module/m7/parameters/x") == "1\n"
    data = tar((member("proc/cpuinfo"), b"processor : 0\n"), *((file, b"1" * 4096) for file in files))
    assert "its files hold more than 1 MiB" in refusal(put(tmp_path / "full.tar", data))


def test_no_host_or_several_in_a_tree(tmp_path: Path) -> None:
    assert "no recorded /proc" in refusal(put(tmp_path / "x.tar", tar((member("a/b/c/d/e/f/proc/1/x"), b""))))
    assert "no recorded /proc" in refusal(put(tmp_path / "x.tar", tar((member("usr/include/sys/types.h"), b""))))
    (tmp_path / "x.tar").unlink()
    assert "no recorded /proc" in refusal(tmp_path)
    grow(tmp_path / "one")
    grow(tmp_path / "two")
    assert "holds 2 recorded hosts (one, two" in refusal(tmp_path)


# --- recordings, text, and what is neither


def test_recordings(tmp_path: Path) -> None:
    recording = {"schema": "torchtune-sys/recording/1", "files": {"/proc/x": "1"}}
    assert host(put(tmp_path / "r.json", json.dumps(recording).encode())).text("/proc/x") == "1"
    packed = host(put(tmp_path / "r.json.gz", gzip.compress(json.dumps(recording).encode())))
    assert isinstance(packed, ScrubbedHost) and isinstance(packed.inner, RecordedHost)
    put(tmp_path / "over.json", b'{"extends": "r.json", "files": {"/proc/y": "2"}}')
    both = host(tmp_path / "over.json")
    assert (both.text("/proc/x"), both.text("/proc/y")) == ("1", "2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"files": {"/x": "1"},\n "links": {"/y" "z"}}', "line 2, column"),
        ('{"files": {"/x": ', "not valid JSON"),
        ("[1, 2]", "a recording is a JSON object"),
        ("{}", "not a recording"),
        ('{"facts": {}}', "not a recording"),
        ('{"schema": "torchtune-sys/report/1", "results": []}', "is a report"),
        ('{"schema": "torchtune-sys/snapshot/1", "facts": {}}', "is a snapshot"),
        ('{"schema": "torchtune-sys/recording/9"}', "has the schema torchtune-sys/recording/9"),
        ('{"extends": "self.json"}', "in a circle: self.json -> self.json"),
        ('{"extends": "none.json"}', "none.json: No such file"),
        ('{"extends": 5}', '"extends" names no files'),
        ('{"files": ["/x"]}', "files: Expected"),
        ('{"files": {"/x": 5}}', "files: Expected"),
        ('{"links": {"/x": ["y"]}}', "links: Expected"),
        ("[" * 100_000, "not valid JSON"),
        ("", "is empty"),
        (" \n", "is empty"),
    ],
)
def test_recordings_that_are_none(tmp_path: Path, content: str, words: str) -> None:
    assert words in refusal(put(tmp_path / "self.json", content.encode()))


def test_a_longer_circle_is_named(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        put(tmp_path / f"{name}.json", json.dumps({"extends": f"{other}.json"}).encode())
    assert "a.json -> b.json -> c.json -> a.json" in refusal(tmp_path / "a.json")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with a file outside of what a recording in its sub-folder may read."""
    put(tmp_path / "secret.json", b'{"files": {"/proc/x": "secret"}}')
    (tmp_path / "here" / "sub").mkdir(parents=True)
    put(tmp_path / "here" / "sub" / "below.json", b'{"files": {"/proc/x": "secret"}}')
    (tmp_path / "here" / "link.json").symlink_to("../secret.json")
    (tmp_path / "here" / "near.json").symlink_to("good.json")
    (tmp_path / "here" / "folder").symlink_to("..")
    put(tmp_path / "here" / "good.json", b'{"files": {"/proc/x": "good"}}')
    os.mkfifo(tmp_path / "here" / "fifo")
    return tmp_path / "here"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("../secret.json", "only files in the same folder"),
        ("sub/below.json", "only files in the same folder"),
        ("folder/secret.json", "only files in the same folder"),
        ("./good.json", "only files in the same folder"),
        ("/proc/kmsg", "only files in the same folder"),
        ("{here}/good.json", "only files in the same folder"),
        ("..", "only files in the same folder"),
        ("good.json\0", "only files in the same folder"),
        ("link.json", "is a symbolic link"),
        ("near.json", "is a symbolic link"),
        ("fifo", "is no regular file"),
        ("sub", "is no regular file"),
        ("none.json", "No such file"),
    ],
)
def test_a_recording_extends_regular_files_beside_it_only(beside: Path, named: str, words: str) -> None:
    content = json.dumps({"extends": ["good.json", named.replace("{here}", str(beside))]})
    started = time.monotonic()
    assert words in refusal(put(beside / "r.json", content.encode()))
    assert time.monotonic() - started < 10, "nothing was waited for"


def test_a_given_link_is_followed_and_what_lies_beside_the_link_is_extended(beside: Path) -> None:
    put(beside / "sub" / "r.json", b'{"extends": "good.json"}')
    (beside / "given.json").symlink_to("sub/r.json")
    assert host(beside / "given.json").text("/proc/x") == "good"


def test_standard_input_extends_nothing(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside)
    handle, kept = os.memfd_create("recording"), os.dup(0)
    try:
        os.write(handle, b'{"extends": "good.json"}')
        os.lseek(handle, 0, os.SEEK_SET)
        os.dup2(handle, 0)
        assert "may extend no file" in refusal("-")
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(handle)


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a chain that names the next one twice would double what is read: 2 to the power of its length."""
    read: list[str] = []

    really = reading.opened_input

    def counted(path: str, patience_s: float = 1.0, *, plain: bool = False) -> contextlib.AbstractContextManager[reading.Source]:
        read.append(Path(path).name)
        return really(path, patience_s, plain=plain)

    monkeypatch.setattr(reading, "opened_input", counted)
    last = EXTENDED_LIMIT - 1
    for number in range(last):
        content = {"extends": [f"{number + 1}.json"] * 2, "files": {"/proc/x": str(number)}}
        put(tmp_path / f"{number}.json", json.dumps(content).encode())
    put(tmp_path / f"{last}.json", b'{"files": {"/proc/x": "last", "/proc/y": "last"}}')
    both = host(tmp_path / "0.json")
    assert (both.text("/proc/x"), both.text("/proc/y")) == ("0", "last") and len(read) == len(set(read)) == EXTENDED_LIMIT
    put(tmp_path / f"{last}.json", b'{"extends": "more.json"}')
    put(tmp_path / "more.json", b'{"files": {"/proc/x": "more"}}')
    assert f"more than {EXTENDED_LIMIT} files" in refusal(tmp_path / "0.json")


def test_strange_entries_are_unparsed(tmp_path: Path) -> None:
    content = {
        "stats": {"/x": {"mode": "y"}},
        "spaces": {"/x": {}},
        "commands": {"ls": {"rc": "x"}},
        "files": {"/z": {"odd": 1}},
        "answers": {"nvml": {"error": "UNINITIALIZED", "devices": []}},
    }
    seen = host(put(tmp_path / "r.json", json.dumps(content).encode()))
    assert {why(seen.stat("/x")), why(seen.space("/x")), why(seen.run(("ls",))), why(seen.text("/z"))} == {Why.UNPARSED}
    assert seen.ask("nvml") == {"error": "UNINITIALIZED", "devices": []}  # an answer with an "error" of its own


def test_pasted_text(tmp_path: Path) -> None:
    words = "Collecting environment information...\nPyTorch version: 2.11.0\n"
    for data in (words.encode(), words.encode("utf-8-sig"), words.encode("utf-16"), gzip.compress(words.encode())):
        found = open_input(str(put(tmp_path / "x.txt", data)))
        assert isinstance(found, PastedText) and found.text == words
    with pytest.raises(UnreadableInput):
        open_host(str(tmp_path / "x.txt"))


def test_a_recording_that_powershell_wrote(tmp_path: Path) -> None:
    content = json.dumps({"files": {"/proc/version": "Linux version 6.8"}})
    (tmp_path / "host.json").write_bytes(content.encode("utf-16"))
    found = open_input(str(tmp_path / "host.json"))
    assert isinstance(found, Host) and found.text("/proc/version") == "Linux version 6.8"


def test_an_empty_name_is_told() -> None:
    for names in ({"from_": ""}, {"root": ""}):
        with pytest.raises(UnreadableInput, match="is empty"):
            open_input(**names)


@pytest.mark.parametrize(
    "line", ["[2026-07-09 00:57:25] host NCCL WARN no path", "[pip3] torch==2.11.0", "[    4.1] NVRM: loading", "[0] x"]
)
def test_a_log_may_begin_with_a_bracket(tmp_path: Path, line: str) -> None:
    assert isinstance(open_input(str(put(tmp_path / "x.txt", line.encode()))), PastedText)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(range(256)) * 20, "neither text nor"),
        (b"\x7fELF" + b"\0" * 100, "is a program"),
        (b"PK\x03\x04" + b"\0" * 100, "zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 100, "zstd"),
        (b"\x89PNG\r\n" + b"\0" * 100, "picture"),
        (b"070701" + b"0" * 104 + b"TRAILER!!!\0", "cpio"),
        (b"\x04\x22\x4d\x18" + b"\0" * 100, "lz4"),
    ],
)
def test_binary_garbage(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refusal(put(tmp_path / "x", data))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none")
    assert "is a device" in refusal("/dev/zero")
    started = time.monotonic()
    os.mkfifo(tmp_path / "fifo")
    assert "delivered nothing for 0.3 s" in refusal(tmp_path / "fifo", patience_s=0.3)
    assert time.monotonic() - started < 30


def test_a_fifo_that_delivers_late(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    def deliver() -> None:
        with (tmp_path / "fifo").open("wb") as file:
            for part in (b"Collecting ", b"environment "):
                time.sleep(0.1)
                file.write(part)
                file.flush()

    writer = threading.Thread(target=deliver)
    writer.start()
    found = open_input(str(tmp_path / "fifo"))
    writer.join()
    assert isinstance(found, PastedText) and found.text == "Collecting environment "


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_no_permission() -> None:
    code = (
        "import os; from torchtune_sys.host.input.opening import open_input; from torchtune_sys.host import input; os.setuid(65534)\n"
        "try: open_input('/proc/1/environ')\nexcept Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "Permission denied" in done.stdout and "run as" in done.stdout


def test_standard_input() -> None:
    code = "from torchtune_sys.host.input.opening import open_input; found = open_input('-'); print(type(getattr(found, 'inner', found)).__name__)"
    for data, kind in (
        (b"PyTorch version: 2.11.0\n", "PastedText"),
        (tree_tar(), "TreeHost"),
        (b'{"files": {}}', "RecordedHost"),
    ):
        done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=30, check=False)
        assert done.stdout.decode().strip() == kind, done.stderr


def test_live_without_arguments() -> None:
    found = open_input()
    assert isinstance(found, ScrubbedHost) and isinstance(found.inner, LiveHost) and found.live
