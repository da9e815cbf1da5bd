"""User data: cloud-init's own schema takes it, it holds the script to the byte, and what runs at each start is sound bash."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import warm
from conftest import alone_with
from torchtune_sys.model.install import InstallFile, InstallStep
from torchtune_sys.model.provision import Provision
from torchtune_sys.render.generate.cloud_init import SCRIPT, fits, user_data
from torchtune_sys.render.generate.provision import provisioning

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PROGRAM = [*warm.PROGRAM, "generate", "cloud-init"]
PER_BOOT = "/var/lib/cloud/scripts/per-boot/torchtune-sys"
HOSTILE = "x\n$(touch /tmp/torchtune-sys-owned) `id` 'q' \"q\" \\ : - # \x1b[2J \u2028 {{ y }} {% z %}"


def made(*stages: str, origin: str = "described: Debian GNU/Linux 12 x86_64, no GPU") -> Provision:
    def step(key: str, reboot: bool = False) -> InstallStep:
        actions = (InstallFile(path=f"/etc/torchtune-sys-{key}", text="x\n", root=True),)
        return InstallStep(key=key, title=f"the file {key}", actions=actions, why="w", source="s", reboot=reboot)

    return Provision(
        host="" if origin.startswith("described") else origin,
        origin=origin,
        system="Debian GNU/Linux 12 (x86_64)",
        stages=stages or ("install", "smoke"),
        steps=(step("first", True), step("second")),
        python="/usr/bin/python3",
        device="cpu",
    )


def parsed(text: str) -> dict[str, dict[str, str]]:
    """The files by path, by cloud-init's own reader of YAML."""
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(text)
    assert set(found) == {"write_files", "output"}  # nothing of users, keys and upgrades
    return {item["path"]: item for item in found["write_files"]}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("url", ["", "https://files.example.org/provision.sh?version=1&x=%20"])
@pytest.mark.parametrize("stages", [("install", "smoke"), ("install",)])
@pytest.mark.parametrize("origin", ["described: Debian", HOSTILE])
def test_it_holds_the_script_and_what_runs_it(url: str, stages: tuple[str, ...], origin: str, tmp_path: Path) -> None:
    value = made(*stages, origin=origin)
    script = provisioning(value, "print('it trains')\n")
    text = user_data(value, script, url)
    assert text.startswith("#cloud-config\n") and text == user_data(value, script, url)
    files = parsed(text)
    if url:
        assert set(files) == {PER_BOOT} and hashlib.sha256(script.encode()).hexdigest() in files[PER_BOOT]["content"]
    else:
        held = files[SCRIPT]
        assert (held["permissions"], held["encoding"], held["owner"]) == ("0700", "gz+b64", "root:root")
        assert gzip.decompress(base64.b64decode(held["content"])).decode() == script
    assert list(files)[-1] == PER_BOOT and files[PER_BOOT]["permissions"] == "0755"
    place = tmp_path / "per-boot"
    place.write_text(files[PER_BOOT]["content"])
    if SHELLCHECK.exists():
        done = subprocess.run([SHELLCHECK, "-o", "all", "-f", "gcc", place], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
    _accepted(text, tmp_path)


def _accepted(text: str, tmp_path: Path) -> None:
    if shutil.which("cloud-init") is None:
        return
    place = tmp_path / "user-data"
    place.write_text(text)
    done = subprocess.run(["cloud-init", "schema", "-c", place], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Valid" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="needs cloud-init")
def test_the_schema_would_say_so(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        _accepted("#cloud-config\nwrite_files:\n- path: 3\n  encoding: rot13\n", tmp_path)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (3_000, []),
        (14_000, ["for Amazon EC2 (16384 bytes) only after gzip -9"]),
        (45_000, ["too large for Amazon EC2", "for OpenStack (49149 bytes) only after"]),
        (55_000, ["too large for Amazon EC2", "too large for OpenStack", "for Azure (65535 bytes) only after"]),
        (500_000, ["EC2", "too large for OpenStack", "too large for Azure", "too large for Google", "too large for vSphere"]),
    ],
)
def test_where_it_is_too_large_is_said(size: int, says: list[str]) -> None:
    """What no compression makes smaller, as text in base64: a third larger than its bytes, which compression takes back."""
    noise = base64.b64encode(b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(size // 32))).decode()
    first, *found = fits(noise)
    assert first.startswith(f"{len(noise)} bytes of user data, ")
    assert len(found) == len(says) and all(words in line for words, line in zip(says, found, strict=True))


def per_boot(tmp_path: Path, text: str, script: str, system: str = "stopping") -> subprocess.CompletedProcess[str]:
    """What runs at each start, in a folder in place of the host's, with a script that notes how it was called and a systemd that says
    how it is with the system."""
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir(exist_ok=True)
    systemctl.write_text(f"#!/bin/sh\necho {system}\n")
    systemctl.chmod(0o755)
    content = parsed(text)[PER_BOOT]["content"].replace("/var/lib/torchtune-sys", str(tmp_path / "state"))
    place = tmp_path / "state/cloud/provision.sh"
    if script:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(script)
    env = {**os.environ, "PATH": f"{systemctl.parent}:{os.environ['PATH']}", "TORCHTUNE_SYS_PAUSE_S": "0"}
    return subprocess.run(["bash", "-c", content], capture_output=True, text=True, check=False, env=env)


NOTES = 'echo "$*" >>"${0%/*}/calls"; exit '


@pytest.mark.parametrize(("ends_with", "status"), [(0, 0), (1, 1), (3, 3), (10, 0)])
def test_the_verdict_is_how_it_ends_and_a_start_of_the_host_is_none(ends_with: int, status: int, tmp_path: Path) -> None:
    done = per_boot(tmp_path, user_data(made(), "x"), f"{NOTES}{ends_with}\n")
    assert (done.returncode, done.stderr) == (status, "")
    assert (tmp_path / "state/cloud/calls").read_text() == "--reboot\n"


def test_a_start_that_does_not_come_is_no_success(tmp_path: Path) -> None:
    done = per_boot(tmp_path, user_data(made(), "x"), f"{NOTES}10\n", "running")
    assert done.returncode == 3 and "systemctl reboot" in done.stdout


def test_a_host_with_a_verdict_is_only_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "state/provision").mkdir(parents=True)
    (tmp_path / "state/provision/verdict").touch()
    assert per_boot(tmp_path, user_data(made(), "x"), f"{NOTES}1\n").returncode == 1
    assert (tmp_path / "state/cloud/calls").read_text() == "--status\n"


def test_without_the_smoke_test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    text = user_data(made("install"), "x")
    assert [per_boot(tmp_path, text, f"{NOTES}{code}\n").returncode for code in (1, 10, 0, 1)] == [1, 0, 0, 0]
    assert (tmp_path / "state/cloud/calls").read_text() == "--reboot\n" * 3


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("served", ["the script", "another", "nothing"])
def test_what_is_fetched_is_run_only_if_it_is_what_was_meant(served: str, tmp_path: Path) -> None:
    script = f"{NOTES}0\n"
    (tmp_path / "www").mkdir()
    if served != "nothing":
        (tmp_path / "www/p.sh").write_text(script if served == "the script" else f"touch {tmp_path}/owned\n")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(tmp_path / "www")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        text = user_data(made(), script, f"http://127.0.0.1:{server.server_port}/p.sh")
        done = per_boot(tmp_path, text, "")
    finally:
        server.shutdown()
        server.server_close()
    assert not (tmp_path / "owned").exists()
    assert done.returncode == (0 if served == "the script" else 3)
    if served == "the script":
        assert (tmp_path / "state/cloud/calls").read_text() == "--reboot\n"
        (tmp_path / "www/p.sh").unlink()
        assert per_boot(tmp_path, text, "").returncode == 0  # it is there: no second fetch
    else:
        assert "nothing was run" in done.stdout


def test_the_command(tmp_path: Path) -> None:
    out, script = tmp_path / "user-data", tmp_path / "provision.sh"
    done = subprocess.run(
        [*PROGRAM, "--system", "debian-12", "--gpu", "H200", "--gpus", "8", "-o", out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "too large for Amazon EC2" in done.stderr, done.stderr
    whole = gzip.decompress(base64.b64decode(parsed(out.read_text())[SCRIPT]["content"])).decode()
    assert "nvidia-driver-pinning-580" in whole and "linux-headers-%k" in whole and "python3-venv" in whole
    words = ["--system", "debian-12", "--cpu", "--url", "https://x.org/p.sh", "--script", str(script), "-o", str(out)]
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "too large" not in done.stderr and out.stat().st_size < 16_384
    assert hashlib.sha256(script.read_bytes()).hexdigest() in out.read_text()
    for wrong in (["--url", "https://x.org/p.sh"], ["--script", "x"], ["--url", "file:///x", "--script", "x"], ["--stages", "x"]):
        done = subprocess.run([*PROGRAM, "--system", "debian-12", *wrong], capture_output=True, text=True, check=False)
        assert done.returncode == 2, wrong


_BOOT = r"""
set -eu
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir up w root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=w root
root=$1/root units=$1/root/etc/systemd/system
rm -f "$units"/*.wants/*
for unit in cloud-init-local cloud-init cloud-config cloud-final; do
    ln -s "/lib/systemd/system/$unit.service" "$units/cloud-init.target.wants/"
done
ln -sf /lib/systemd/system/multi-user.target "$units/default.target"
: >"$root/etc/fstab"
rm -rf "$root/var/lib/cloud" "$root/var/lib/torchtune-sys"
mkdir -p "$root/var/lib/cloud/seed/nocloud" /run/systemd/nspawn
mount -t tmpfs tmpfs /run/systemd/nspawn
cp "$2" "$root/var/lib/cloud/seed/nocloud/user-data"
printf 'instance-id: newborn\n' >"$root/var/lib/cloud/seed/nocloud/meta-data"
printf 'datasource_list: [NoCloud, None]\n' >"$root/etc/cloud/cloud.cfg.d/99-newborn.cfg"
cat >"$units/told.service" <<'END'
[Unit]
After=cloud-final.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cloud-init status; echo "cloud-init $?"; cat /etc/torchtune-sys-*'
ExecStart=/bin/sh -c 'if [ -e /var/lib/torchtune-sys/provision/verdict ]; then systemctl --no-block poweroff; fi'
StandardOutput=append:/told
[Install]
WantedBy=cloud-init.target
END
ln -s /etc/systemd/system/told.service "$units/cloud-init.target.wants/"
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
for start in 1 2 3 4; do
    code=0
    timeout 300 systemd-nspawn -q --register=no --keep-unit -M "newborn-$$" --private-network --console=pipe -D "$root" \
        /lib/systemd/systemd </dev/null >"console.$start" 2>&1 || code=$?
    if [ "$code" != 133 ]; then break; fi # 133: it asked to be started again
done
echo "starts $start, the last ended with $code"
cat "$root/told"
tail -n 3 "$root/var/log/torchtune-sys-provision.log"
grep -h 'torchtune\|proven' "$root/var/log/cloud-init-output.log" || true
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(
    shutil.which("cloud-init") is None or shutil.which("systemd-nspawn") is None, reason="needs cloud-init and systemd-container"
)
@pytest.mark.parametrize(("smoke", "verdict"), [(0, "proven"), (1, "not proven")])
def test_a_newborn_machine_is_taken_through_its_restart_to_the_verdict(smoke: int, verdict: str, tmp_path: Path) -> None:
    """This machine's own system, overlaid, as a machine that cloud-init has not seen: one start, the one that was asked for, the verdict."""
    value = made()
    seed = tmp_path / "user-data"
    seed.write_text(user_data(value, provisioning(value, f"import sys\nprint('trained')\nsys.exit({smoke})\n")))
    (tmp_path / "m").mkdir()
    place = ["unshare", "--mount", "--propagation", "private", "bash", "-c"]
    with alone_with(str(shutil.which("systemd-nspawn"))):
        done = subprocess.run(
            [*place, _BOOT, "boot", str(tmp_path / "m"), str(seed)], capture_output=True, text=True, check=False, timeout=900
        )
    if "starts" not in done.stdout:
        pytest.skip(f"no machine could be started here: {done.stderr[-300:]}")
    assert "starts 2, the last ended with 0" in done.stdout, done.stdout + done.stderr
    assert f"status: {'done' if smoke == 0 else 'error'}" in done.stdout.rpartition("cloud-init ")[0]
    assert f"cloud-init {smoke}\nx\nx\n" in done.stdout  # both files are there
    assert f" {verdict}: " in done.stdout
