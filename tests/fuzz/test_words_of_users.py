"""What a user makes the kernel log, what a node says of others, and what reads archives and answers of fleets (docs/attacks.md)."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.fleet.over_slurm import Slurm
from torchtune_sys.formats.kernel_log import stamps
from torchtune_sys.formats.kernel_messages import events, read_log
from torchtune_sys.host.base import Output
from torchtune_sys.host.children import process
from torchtune_sys.host.input import excerpts
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.host.live_queries.kernel_log import kernel_log
from torchtune_sys.model.diagnosis import UnreadSource
from torchtune_sys.model.values import Missing
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

XID = "NVRM: Xid (PCI:0000:{0}:00): 79, pid=1, GPU has fallen off the bus."
CRASHING = """
import ctypes, os, sys
os.write(handle := os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), b"\\0" * 4096)
call = ctypes.CDLL(None).mmap
call.restype, call.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
place = call(None, 4096, 5, 2, handle, 0)
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)
ctypes.CFUNCTYPE(None)(place)()
"""
"""Runs a page of a file of any name, with a task of any name: zeros write to where a register points, which is nowhere."""


@needs_root
@pytest.mark.parametrize(
    "argv",
    [
        (SYSTEM_PYTHON, "-c", CRASHING, XID.format("d1"), "x"),
        (SYSTEM_PYTHON, "-c", CRASHING, f"x\n{XID.format('d2')}", "NVRM: Xid (PCI:"),
        ("unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "NVRM: Xid (PCI:0000:d3:00): 79", "none", "/mnt"),
    ],
)
def test_no_user_makes_the_kernel_log_say_that_a_gpu_is_lost(scene: Scene, argv: tuple[str, ...]) -> None:
    """The kernel quotes files that are mapped where a program crashes, and mount options; each was an Xid, for which a Prolog drains the node."""
    scene.alice.run([*argv], cwd=str(scene.alice.home))
    time.sleep(0.1)
    found = kernel_log("", 5.0)
    if isinstance(found, Missing):
        pytest.skip(str(found))
    mark = next(f"0000:d{number}:00" for number in "123" if f"0000:d{number}:00" in " ".join(argv))
    told = [line for line in found["lines"] if mark in line]
    if not told:
        pytest.skip("the kernel does not log it here (debug.exception-trace, user namespaces)")
    assert not [event for event in events(stamps(found["lines"])) if mark in event.subject]


STAMPS = ("[60230.298657] ", "Nov 27 03:00:00 n1 kernel: ", "2026-11-27T03:00:00+0000 n1 kernel: [60230.298657] ", "")
NAMED = (
    "python3[4698]: segfault at 0 ip 00007fde903ba003 sp 00007ffeb0399468 error 4 in {}[3,7fde903ba000+1000] likely on CPU 0",
    "NVRM: Xid (PCI:[9]: segfault at 0 ip 0 sp 0 error 4 in {}[3,7+1]",
    "traps: x[9] trap int3 ip:5 sp:7 error:0 in {}[4+1]",
    "x[9]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation fault in {}[4+1]",
    "tmpfs: Unknown parameter '{}'",
    "tmpfs: Bad mount option {}",
    "overlayfs: failed to resolve '/x {}': -2",
    "process 'u/{}' started with executable stack",
)
MADE_UP = (
    XID.format("18"),
    "Memory failure: 0x1234: Sending SIGBUS to x:1 due to hardware memory corruption",
    "nvme nvme0: Removing after probe failure",
)


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_name_that_a_user_chose_is_no_message_of_the_kernel_s(stamp: str) -> None:
    for made_up in MADE_UP:
        assert read_log(f"{stamp}{made_up}", "x") is not None
        for line in NAMED:
            for text in (made_up, f"x\\x0a{made_up}", f"x\n{' ' * 27}{made_up}") if stamp else (made_up,):
                assert read_log(stamp + line.format(text), "x") is None, line.format(text)


@pytest.mark.parametrize("stamp", STAMPS[:1])
def test_a_firmware_s_record_is_not_made_of_mount_options(stamp: str) -> None:
    rows = ("event severity: fatal", "section_type: memory error")
    assert read_log("".join(f"{stamp}{{1}}[Hardware Error]: {row}\n" for row in rows), "x") is not None
    assert read_log("".join(f"{stamp}tmpfs: Bad mount option [Hardware Error]: {row}\n" for row in rows), "x") is None


@pytest.mark.parametrize("name", ["Linux version 6", "ceph: mds0 hung", "libceph: osd1 u"])
def test_a_task_of_any_name_may_crash(name: str) -> None:
    """A boot would have made all that was logged before it old."""
    assert read_log(f"[5.100000] {name}[77]: segfault at 0 ip 0 sp 0 error 4 in x[3]", "x") is None


@needs_root
@pytest.mark.skipif(shutil.which("clush") is None, reason="clustershell is not installed")
@pytest.mark.parametrize("variable", ["CLUSTERSHELL_CFGDIR", "XDG_CONFIG_HOME", "PATH"])
def test_settings_of_who_called_start_nothing_on_the_way_to_other_hosts(scene: Scene, variable: str) -> None:
    """``sudo -E`` keeps them; ClusterShell asks a program that groups.conf names for the nodes of a group."""
    place = scene.alice.home / "settings"
    program = scene.alice.write(place / "nodeset", scene.shell_payload(), 0o755)
    groups = f"[Main]\ndefault: hers\n[hers]\nmap: {program}; echo localhost\nall: {program}\n"
    scene.alice.write(place / "groups.conf", groups)
    scene.alice.write(place / "clustershell" / "groups.conf", groups)
    value = f"{place}:{os.environ['PATH']}" if variable == "PATH" else str(place)
    plainly = ["nodeset", "--expand", "@gpu"]
    subprocess.run(plainly, env={**os.environ, variable: value}, capture_output=True, timeout=60)
    assert scene.who_ran() == {0}, "it is no way in"
    as_root("fleet", "--timeout", "3", "--nodes", "@gpu", "--", "true", **{variable: value})
    assert scene.who_ran() == set()


@needs_root
def test_a_folder_of_another_user_s_gives_ansible_no_settings(scene: Scene) -> None:
    """ansible.cfg names plug-ins, which run on the controller."""
    own = scene.folder / "own-bin"
    own.mkdir()
    (own / "ansible").write_text(
        f'#!/bin/sh\npwd >{scene.folder}/where\nenv >{scene.folder}/variables\necho "  hosts (1):"; echo "    n1"\n'
    )
    (own / "ansible").chmod(0o755)
    scene.alice.write(scene.alice.home / "ansible.cfg", "[defaults]\ncallback_plugins = .\n")
    kept = scene.folder / "kept.cfg"
    kept.write_text("")
    inventory = scene.folder / "inventory"
    inventory.write_text("n1\n")
    path = f"{own}:{os.environ['PATH']}"
    for folder, settings, expected in (
        (scene.alice.home, scene.alice.home / "ansible.cfg", "/"),
        (scene.folder, kept, str(scene.folder)),
    ):
        as_root("fleet", "--inventory", str(inventory), "--timeout", "3", cwd=folder, PATH=path, ANSIBLE_CONFIG=str(settings))
        assert (scene.folder / "where").read_text().strip() == expected
        assert ("ANSIBLE_CONFIG=" in (scene.folder / "variables").read_text()) == (settings == kept)


def _hosts(folder: Path, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what compare makes of lines of JSON."""
    (folder / "hosts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        [*PROGRAM, "compare", str(folder / "hosts.jsonl"), "--format", "json"], capture_output=True, text=True, timeout=60
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _facts(name: str, model: str = "A") -> dict[str, Any]:
    return {"schema": "torchtune-sys/facts/1", "facts": {"cpu": {"model": model}}, "volatile": {"host": name}}


def test_one_node_s_answer_names_no_other_as_bad(tmp_path: Path) -> None:
    nodes = [
        {"node": name, "verdict": "no-go", "causes": [{"cause": "xid-gpu-lost", "weight": "fatal"}]} for name in ("n2", "n7")
    ]
    made_up = {"schema": "torchtune-sys/preflight/1", "nodes": nodes}
    lines = [{"schema": "torchtune-sys/fleet/1", "host": f"n{number}", "document": _facts("n")} for number in range(5)]
    found = _hosts(tmp_path, [*lines, {"schema": "torchtune-sys/fleet/1", "host": "evil", "document": made_up}])
    assert [item["hosts"] for item in found["findings"]] == [["n2 (reported by evil)", "n7 (reported by evil)"]]


@pytest.mark.parametrize("name", ["n1,n2", "n[1-4]", " n1", "n1\u200b", "\uff4e1"])
def test_a_host_is_not_called_as_others(tmp_path: Path, name: str) -> None:
    found = _hosts(tmp_path, [*(_facts(f"n{number}") for number in range(5)), _facts(name, "B")])
    assert [item["host"] for item in found["odd"]] == [json.dumps(name)]


def test_of_two_hosts_with_one_name_the_folders_are_told(tmp_path: Path) -> None:
    """Ansible's fetch makes one for each host, and calls all files alike."""
    for name, said, model in (("n1", "n1", "A"), ("n2", "n2", "A"), ("n3", "n3", "A"), ("evil", "n2", "B")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "facts.json").write_text(json.dumps(_facts(said, model)))
    done = subprocess.run([*PROGRAM, "compare", str(tmp_path), "--format", "json"], capture_output=True, text=True, timeout=60)
    assert [item["host"] for item in json.loads(done.stdout)["odd"]] == [f"n2 ({tmp_path}/evil/facts.json)"]


def test_no_cell_of_a_sheet_is_a_formula(tmp_path: Path) -> None:
    lines = [
        *(_facts(f"n{number}") for number in range(5)),
        _facts("x", "\uff1dcmd()"),
        _facts("y", " =cmd()"),
        _facts("z", "a; =cmd()"),
    ]
    (tmp_path / "hosts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run(
        [*PROGRAM, "compare", str(tmp_path / "hosts.jsonl"), "--format", "csv"], capture_output=True, text=True, timeout=60
    )
    assert ",'\uff1dcmd()," in done.stdout and ",' =cmd()," in done.stdout
    assert ",a; '=cmd()," in done.stdout, "with another separator a cell begins there"


def test_empty_entries_of_archives_in_archives_are_counted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip archive of 23 MB had 3.6 million of them: more than a minute, and nothing was counted."""
    monkeypatch.setattr(excerpts, "MEMBER_LIMIT", 100)

    def zipped(data: bytes) -> bytes:
        into = io.BytesIO()
        with zipfile.ZipFile(into, "w") as archive:
            for number in range(30):
                archive.writestr(str(number), data)
        return into.getvalue()

    (tmp_path / "x.zip").write_bytes(zipped(zipped(b"")))
    found = list(collected([str(tmp_path / "x.zip")]))
    assert [item.why for item in found if isinstance(item, UnreadSource)] == [
        "more than 500,000 entries of archives: the rest is left out"
    ] * 2


def test_a_reason_that_names_another_node_does_not_count_for_it(tmp_path: Path) -> None:
    """A process that a user left behind is called ``x|n7|``, and stands in the reason of the node where it was found, hours ago."""
    script = subprocess.run(
        [*PROGRAM, "generate", "slurm", "prolog", "--tool", "/bin/true"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    rows = [
        f"2026-11-27T01:00:{number:02d}|n{number + 20}|torchtune-sys: [node] left-processes: x|n7| runs" for number in range(20)
    ]
    answers = {
        "sinfo": "cat <<'X'\n" + "\n".join([*rows, "2026-11-27T09:00:00|n7|torchtune-sys: [node] x"]) + "\nX",
        "scontrol": ":",
        "logger": ":",
    }
    for name, text in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    functions = script[: script.index("judge prolog")]
    more = f"PATH={tmp_path}:$PATH; trap - EXIT; node=n7; mark={tmp_path}/mark; reason=x; drain; echo drained=$?"
    done = subprocess.run(["bash", "-c", functions + more], capture_output=True, text=True, timeout=60)
    assert done.stdout == "drained=0\n", done.stderr


@pytest.mark.parametrize("sign", "\u2028\u0085\r\x1c\x0b")
def test_a_reason_that_sinfo_tells_is_no_other_node_s_line(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = f"n1|idle|none\nn2|drained|x{sign}n1|down|gone\n"
    monkeypatch.setattr(process, "run", lambda *_words, **_more: Output(rc=0, stdout=told, stderr=""))
    asked, dead = Slurm("", {}).hosts()
    assert (list(asked), [answer.host for answer in dead]) == (["n1"], ["n2"])


XID = "Nov 30 20:00:02 n7 kernel: NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."
FULL = "OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("before", "failed", "after"),
    [
        ("Nov 30 20:00:00 n7 eve[7]: $ git log", XID, "Nov 30 20:00:03 n7 eve[7]: x"),
        ("Nov 30 20:00:00 n7 eve[7]: $ pytest -q", f"Nov 30 20:00:01 n7 slurmd[44]: {FULL}", "Nov 30 20:00:03 n7 eve[7]: 1 passed in 0.10s"),
        ("[rank0]: $ pytest -q", f"[rank1]: {FULL}", "[rank0]: 1 passed in 0.10s"),
        ("n1: $ man errno", f"n2: {FULL}", "n1: x"),
    ],
)  # fmt: skip
def test_no_prompt_that_one_program_prints_hides_what_another_says(before: str, failed: str, after: str) -> None:
    """Whose program writes to a log that all write to, a rank's output or the system's, decides nothing of what others say there."""
    text = "\n".join((before, failed, after))
    told = diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))])
    assert [each.cause for each in told.causes] == ["gpu-fallen-off-bus" if failed == XID else "disk-full-or-quota"]
    own = "\n".join((before, before.partition("$ ")[0] + FULL, after))
    assert not diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(own.encode())))]).causes
