"""What people give to --root, and trees and archives for --from."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import subprocess
import tarfile
from pathlib import Path

import pytest
from opened import FILES, host, member, packed, put, refusal, tar, tree_tar, why

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input import archive, reading
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.host.input.tarball import members
from torchtune_sys.model.values import Missing, Why


def grow(top: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


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


def test_in_a_running_kernel_s_proc_self_is_not_the_host_s() -> None:
    """It is the process that reads, with this tool's own limits on memory and CPU time. A copy's is what was copied."""
    for seen in (open_host(root="/"), open_host("/")):
        assert {why(seen.text(f"/proc/self/{name}")) for name in ("limits", "status", "cgroup")} == {Why.NOT_RECORDED}
        assert isinstance(seen.text("/proc/self/mountinfo"), str) and isinstance(seen.text("/proc/net/dev"), str)


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
