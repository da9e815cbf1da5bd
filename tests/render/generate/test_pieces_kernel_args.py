"""``generate kernel-args``: GRUB's own script reads the file, and the script for systemd-boot takes back what it did."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import Seen, recording

from conftest import HOSTS
from torchtune_sys.errors import UserError
from torchtune_sys.model.actions import KernelArgument
from torchtune_sys.model.plan_context import GRUB_FILE
from torchtune_sys.remediation.plan.kernel_arguments import Argument, arguments, is_plain
from torchtune_sys.render.generate import kernel_args
from torchtune_sys.rules import by_id

RULES = {name: rule for name, rule in by_id().items() if any(isinstance(action, KernelArgument) for action in rule.fix)}
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
TWO = (
    Argument(key="kernel argument iommu", argument="iommu=pt", rules=("a",), why="w"),
    Argument(key="kernel argument modprobe.blacklist", argument="modprobe.blacklist=nouveau", rules=("b",), why="w"),
)


def asked(name: str) -> tuple[Argument, ...]:
    seen = Seen(recording(name), list(RULES.values()))
    found, refused = arguments(seen.facts, seen.results, seen.ground)
    assert not refused
    return found


def test_hosts_ask_for_arguments_whatever_their_boot_loader() -> None:
    found = {argument.argument for name in FAILING for argument in asked(name)}
    print(f"{len(FAILING)} hosts: {sorted(found)}")
    assert found == {"iommu=pt", "modprobe.blacklist=nouveau"}


def test_the_file_for_grub_is_the_one_that_apply_writes() -> None:
    data = recording("nouveau-loaded.fail", files={"/usr/sbin/update-grub": ""})
    seen = Seen(data, list(RULES.values()))
    written = {file.path: file.content for file in seen.plan.files}
    found, _ = arguments(seen.facts, seen.results, seen.ground)
    assert written[GRUB_FILE] == kernel_args.grub(found)


@pytest.mark.parametrize("argument", ['x="a b"', "a b", "$(reboot)", "a\nb", "a`b`", "", "-x", "a'b", "a;b", "a\\b", "ä"])
def test_what_is_no_plain_word_is_never_written(argument: str) -> None:
    hostile = [Argument(key="k", argument=argument, rules=(), why="w")]
    for form in kernel_args.FORMS.values():
        with pytest.raises(UserError):
            form(hostile)


@given(st.text(max_size=20))
def test_a_plain_word_is_one_word_of_a_shell(argument: str) -> None:
    assert not is_plain(argument) or not set(argument) & set(" \t\n\"'\\$`;&|<>()*?[]#~!{}")


def test_commands_carry_their_inverse() -> None:
    assert kernel_args.grubby(TWO) == (
        'grubby --update-kernel=ALL --args="iommu=pt modprobe.blacklist=nouveau"\n'
        '# to take them back: grubby --update-kernel=ALL --remove-args="iommu=pt modprobe.blacklist=nouveau"\n'
    )
    assert "# to take them back: rpm-ostree kargs --delete-if-present=iommu=pt" in kernel_args.rpm_ostree(TWO)
    assert '# to take them back: kernelstub --delete-options "iommu=pt' in kernel_args.kernelstub(TWO)


def test_systemd_boot_there_and_back(tmp_path: Path) -> None:
    script, cmdline, calls = tmp_path / "args.sh", tmp_path / "cmdline", tmp_path / "calls"
    script.write_text(
        kernel_args.systemd_boot(TWO).replace("\nPATH=", f"\nPATH={tmp_path}:")
    )  # it starts none of the caller's PATH
    cmdline.write_text("root=UUID=1  rw iommu=pt,x intel_iommu=pt *")
    cmdline.chmod(0o640)
    root = tmp_path / "root"
    for kernel in (
        "lib/modules/6.1/vmlinuz",
        "lib/modules/6.2-amd64/modules.dep",
        "boot/vmlinuz-6.2-amd64",
        "lib/modules/6.3/gone",
    ):
        (root / kernel).parent.mkdir(parents=True, exist_ok=True)
        (root / kernel).touch()
    (tmp_path / "kernel-install").write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    (tmp_path / "kernel-install").chmod(0o755)
    env = {"TORCHTUNE_SYS_CMDLINE": str(cmdline), "TORCHTUNE_SYS_ROOT": str(root)}
    for _ in range(2):
        subprocess.run(["sh", str(script)], env=env, check=True, timeout=20)
        assert cmdline.read_text() == "root=UUID=1 rw iommu=pt,x intel_iommu=pt * iommu=pt modprobe.blacklist=nouveau\n"
    subprocess.run(["sh", str(script), "undo"], env=env, check=True, timeout=20)
    assert cmdline.read_text() == "root=UUID=1  rw iommu=pt,x intel_iommu=pt *" and cmdline.stat().st_mode & 0o777 == 0o640
    made = [f"add 6.1 {root}/lib/modules/6.1/vmlinuz", f"add 6.2-amd64 {root}/boot/vmlinuz-6.2-amd64"]
    assert calls.read_text().splitlines() == made * 3
    cmdline.unlink()
    subprocess.run(["sh", str(script), "undo"], env=env, check=True, timeout=20)
    assert not cmdline.exists(), "what adds nothing makes no file"
    subprocess.run(["sh", str(script)], env=env, check=True, timeout=20)
    assert cmdline.read_text().endswith(" iommu=pt modprobe.blacklist=nouveau\n") and "BOOT_IMAGE" not in cmdline.read_text()
    (tmp_path / "kernel-install").write_text("#!/bin/sh\nexit 1\n")
    failed = subprocess.run(["sh", str(script)], env=env, capture_output=True, text=True, check=False, timeout=20)
    assert failed.returncode == 1 and "not every boot entry was made anew" in failed.stderr
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-o", "all", str(script)], check=True, timeout=60)


@pytest.mark.parametrize("dies", ["sed", "sync", "mv", "kernel-install"])
def test_systemd_boot_ended_anywhere_may_be_run_again(dies: str, tmp_path: Path) -> None:
    """Ended early it left an empty file, from which the next run made boot entries without root=; or nothing that undo knew of."""
    kernel, bin_ = tmp_path / "root/lib/modules/6.1/vmlinuz", tmp_path / "bin"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    bin_.mkdir()
    script, cmdline, calls = tmp_path / "args.sh", tmp_path / "cmdline", tmp_path / "calls"
    script.write_text(kernel_args.systemd_boot(TWO).replace("\nPATH=", f"\nPATH={bin_}:"))
    env = {"TORCHTUNE_SYS_CMDLINE": str(cmdline), "TORCHTUNE_SYS_ROOT": str(tmp_path / "root")}

    def stand_in(name: str, text: str) -> None:
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)

    def run(*words: str) -> int:
        """Killed when it starts ``dies`` for the first time, then the second and the third; then to its end."""
        for place in (1, 2, 3):
            (tmp_path / "count").write_text("")
            real = tmp_path / "made" if dies == "kernel-install" else shutil.which(dies)
            stand_in(
                dies, f'echo >>{tmp_path}/count; [ $(wc -l <{tmp_path}/count) -lt {place} ] && exec {real} "$@"; kill -9 $PPID'
            )
            subprocess.run(["sh", str(script), *words], env=env, capture_output=True, check=False, timeout=20)
        (bin_ / dies).unlink()
        stand_in("kernel-install", f'exec {tmp_path}/made "$@"')
        return subprocess.run(["sh", str(script), *words], env=env, check=False, timeout=20).returncode

    (tmp_path / "made").write_text(f"#!/bin/sh\ncat {cmdline} >>{calls}\n")
    (tmp_path / "made").chmod(0o755)
    stand_in("kernel-install", f'exec {tmp_path}/made "$@"')
    with open("/proc/cmdline", encoding="utf-8") as file:
        first = file.read().split()[-1]
    assert run() == 0
    assert calls.read_text().splitlines()[-1].endswith(f"{first} iommu=pt modprobe.blacklist=nouveau")
    assert run("undo") == 0
    assert calls.read_text().splitlines()[-1].rstrip().endswith(first), "the boot entries have them no more"


def test_systemd_boot_leaves_what_was_there_already(tmp_path: Path) -> None:
    script, cmdline, mine = tmp_path / "args.sh", tmp_path / "cmdline", tmp_path / "mine"
    script.write_text(kernel_args.systemd_boot(TWO))
    mine.write_text("root=UUID=1 iommu=pt quiet\n")
    cmdline.symlink_to(mine)
    env = {"PATH": os.environ["PATH"], "TORCHTUNE_SYS_CMDLINE": str(cmdline), "TORCHTUNE_SYS_ROOT": str(tmp_path)}

    def ran(*args: str) -> str:
        assert subprocess.run(["sh", str(script), *args], env=env, capture_output=True, check=False, timeout=20).returncode == 1
        return mine.read_text()  # no kernel is here, so that it ends with 1

    assert ran() == "root=UUID=1 iommu=pt quiet modprobe.blacklist=nouveau\n"
    mine.write_text(mine.read_text().replace("quiet", "debug"))
    assert ran("undo") == "root=UUID=1 iommu=pt debug\n" and cmdline.is_symlink()


GRUB = """
set -e
mount -t tmpfs none /boot; mkdir -p /boot/grub; : >/boot/vmlinuz-6.1.0-9-amd64; : >/boot/initrd.img-6.1.0-9-amd64
mount -t overlay o -o lowerdir=/etc,upperdir=$1/up,workdir=$1/work /etc
printf '#!/bin/sh\\ncase "$*" in *device*) echo /dev/sda1 ;; *fs_uuid*) echo 1-2 ;; *target=fs*) echo ext2 ;; *) echo x ;; esac\\n' >$1/probe
chmod 755 $1/probe
mount --bind $1/probe /usr/sbin/grub-probe
echo 'GRUB_CMDLINE_LINUX="quiet"' >/etc/default/grub
grub-mkconfig
"""


@pytest.mark.skipif(
    not shutil.which("grub-mkconfig") or os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and grub-common"
)
def test_grub_mkconfig_reads_the_file(tmp_path: Path) -> None:
    tree = tmp_path / "up" / "default" / "grub.d"
    tree.mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tree / Path(GRUB_FILE).name).write_text(kernel_args.grub(TWO))
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", GRUB, "grub", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "wrong fs type" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    rows = [row.split() for row in done.stdout.splitlines() if row.strip().startswith("linux")]
    assert rows, done.stderr
    assert all({"quiet", "iommu=pt", "modprobe.blacklist=nouveau"} <= set(row) for row in rows), rows
