"""Names that users put into the kernel's tables of mounts and control groups, and into its log (docs/attacks.md)."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.target import TESTS
from fuzz.test_lying_file_systems import STUB, shown_as_root_s
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.formats.kernel_log import telling, without_names
from torchtune_sys.host.children import examined
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.host.live_queries.load import unit_of
from torchtune_sys.host.trust import distrust
from torchtune_sys.model.values import Missing
from two_users import Scene, User, as_root, needs_root

NAMES = (
    b"a\rb", b"a\vb", b"a\fb", b"a\x1cb", b"a\xc2\x85b", b"a\xe2\x80\xa8b", b"a\n", b"a\tb", b"a 1", b"a\\b", b"a\xffb", b"\xc3\xa4", b"a|b", b"a#b",
)  # fmt: skip
"""What Python or a shell takes for the end of a line, what the mount table escapes, and what is not ASCII, or no text."""
SOURCES = ("lying", "x,user_id=0,y", "x - fuse x,user_id=0")
PLACES = Path(__file__).parents[2] / "ansible" / "plugins" / "module_utils" / "places.py"


@pytest.fixture
def mounted(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of alice's, in which all seems to be root's, at a place of the name that a test asks for."""
    name, source = request.param
    behind = scene.folder / "behind"
    (behind / "bin").mkdir(parents=True)
    for program in ("python3", "uname", "stat", "torchtune-sys"):
        (behind / "bin" / program).write_text(scene.shell_payload())
        (behind / "bin" / program).chmod(0o755)
    (behind / "report").symlink_to(scene.folder / "kept")
    place = Path(os.fsdecode(os.fsencode(scene.folder) + b"/" + name))
    place.mkdir()
    os.chown(place, scene.alice.uid, scene.alice.gid)
    with shown_as_root_s(User(scene.alice.name, place), behind, "", source):
        assert place.lstat().st_uid == 0
        yield place


each_name = pytest.mark.parametrize(
    "mounted", [*((name, "lying") for name in NAMES), *((b"plain", source) for source in SOURCES)], indirect=True, ids=repr
)


@needs_root
@each_name
def test_a_mount_of_a_user_s_is_hers_whatever_it_is_called(mounted: Path) -> None:
    found = examined.runner(str(mounted / "bin" / "python3"))
    assert isinstance(found, Missing), "root would start it as root"
    assert distrust(str(mounted)), "root would write there"


@needs_root
@pytest.mark.parametrize("mounted", [(b"a\rb", "lying")], indirect=True, ids=repr)
def test_no_command_starts_what_lies_on_it(scene: Scene, mounted: Path) -> None:
    subprocess.run([str(mounted / "bin" / "python3")], check=True)
    assert scene.who_ran() == {0}, "it is no way in"
    (scene.folder / "kept").write_text("kept")
    as_root("check", "-q", "--python", str(mounted / "bin" / "python3"))
    as_root("check", "-q", "-o", str(mounted / "report"))
    assert scene.who_ran() == set() and (scene.folder / "kept").read_text() == "kept"


@needs_root
@each_name
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_bundle_takes_nothing_from_it(mounted: Path, shell: str) -> None:
    text = (STUB / "start.sh").read_text()
    function = text[text.index("only_roots() {") : text.index("refused=\n")]
    done = subprocess.run([shell, "-c", f'{function}only_roots "$1"', "x", str(mounted / "bin" / "python3")])
    assert done.returncode, "the shell would start it"
    assert runpy.run_path(str(STUB / "__main__.py"), run_name="x")["distrust"](str(mounted)), "it would be unpacked there"


@needs_root
@each_name
def test_ansible_s_modules_start_nothing_from_it(mounted: Path) -> None:
    assert runpy.run_path(str(PLACES))["distrust"](str(mounted / "bin" / "torchtune-sys"))


@needs_root
@each_name
def test_generated_scripts_start_nothing_from_it(scene: Scene, mounted: Path) -> None:
    script = as_root("generate", "script", "--from", str(TESTS / "hosts" / "untuned.json")).stdout
    environment = {"PATH": f"{mounted}/bin:/usr/bin:/bin"}
    subprocess.run(
        ["/bin/bash", "-s", "--", "--dry-run"], input=script, text=True, env=environment, capture_output=True, timeout=60
    )
    assert scene.who_ran() == set()


@pytest.mark.parametrize("sign", "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_control_group_of_a_user_s_is_no_service_of_the_system_s(sign: str) -> None:
    """The kernel keeps no newline out of their names alone."""
    assert unit_of(f"0::/user.slice/user-7.slice/user@7.service/a{sign}0::sshd.service\n") == f"a{sign}0::sshd.service of user 7"


@pytest.mark.parametrize("head", ["[    5.100000] ", "Nov 30 20:00:00 n7 kernel: [    5.100000] "])
@pytest.mark.parametrize("sign", "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_no_sign_in_a_name_begins_a_message_of_the_kernel_s(sign: str, head: str) -> None:
    """A log that some daemon wrote down, or that was copied from a terminal, has names as they are: the kernel's own escapes are gone."""
    line = f"{head}x[77]: segfault at 0 ip 0 sp 0 error 4 in a{sign}{head}NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus.[1+1]"
    assert telling(f"{head}usb 1-1: new device\n{line}\n") == [line]
    assert telling(f"login: \r{line}\r\n") == [line]


FALLEN = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."
HEADS = (
    "[    5.100000] ",
    "Nov 30 20:00:00 n7 kernel: [    5.100000] ",
    "Nov 30 20:00:00 n7 kernel: ",
    "2026-11-30T20:00:00+0000 n7 kernel: ",
)
MESSAGES = (
    "x[77]: segfault at 0 ip 0 sp 0 error 4 in {}[7f0000+1000]",
    "traps: x[77] general protection fault ip:7f sp:7f error:0 in {}[7f0000+1000]",
    "Memory cgroup stats for /{}: cache:0KB",
    "tmpfs: Unknown parameter '{}'",
)  # fmt: skip


def causes_of(text: str) -> set[str]:
    found = diagnose([InputText(name="dmesg", excerpt=excerpt(io.BytesIO(text.encode())))])
    return {each.cause for each in found.causes}


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("sign", " \r\v\f\x1c\x85\u2028")
def test_no_name_in_a_log_that_is_diagnosed_is_a_cause(sign: str, head: str, message: str) -> None:
    own, crash = f"{head}{FALLEN}", f"{head}{message.format(f'a{sign}{head}{FALLEN}')}"
    assert causes_of(f"{head}usb 1-1: new device\n{crash}\n") == set()
    assert causes_of(f"{crash}\n{own}\n") == {"gpu-fallen-off-bus"}, "what the kernel says beside it still counts"


@pytest.mark.parametrize(
    "message",
    [
        "nvidia: unknown parameter 'NVreg_X' ignored",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/slurm/job_7,task_memcg=/slurm/job_7/step_0,task=python3,pid=7,uid=1001",
        "pt_main_thread[7]: segfault at 10 ip 7f error 4 in libtorch_cuda.so[7f2a,7f0000+1000] likely on CPU 3 (core 3, socket 0)",
        "traps: ray::IDLE[7] general protection fault ip:7f sp:7f error:0 in _C.cpython-310-x86_64-linux-gnu.so[7f+10]",
        "python3[7]: segfault at 0 ip 0 sp 0 error 14 in python3.10[55+1000]",
    ],
)
def test_names_as_programs_have_them_are_kept(message: str) -> None:
    assert without_names(message, f"[    5.100000] {message}") == message
