"""Installing a driver, as far as it goes without NVIDIA's repository: check mode on a Debian with its real lists of packages, and the key of an rpm repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fleet
import pytest
from controller import Played, Plays
from guest import cached
from ssh_machines import Machine, Unavailable, machines, root, run
from test_actions import BOOT_LOADER, HARDWARE, TOOL
from test_provision_play import repository

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

SOURCE = """Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
SERVE = """
import http.server, ssl
server = http.server.HTTPServer(("127.0.0.1", 443), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/srv/cert.pem", "/srv/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
LISTS = """
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
rm -f "$2"/root/etc/apt/sources.list "$2"/root/etc/apt/sources.list.d/* && cp "$2/debian.sources" "$2/root/etc/apt/sources.list.d/"
mount -t proc proc "$2/root/proc" && mount --bind /dev "$2/root/dev"
touch "$2/root/etc/resolv.conf" && mount --bind /etc/resolv.conf "$2/root/etc/resolv.conf"
chroot "$2/root" apt-get update -qq && cp -r "$2/root/var/lib/apt/lists/." "$3/"
"""


def lists(folder: Path, work: Path) -> Path:
    """What a Debian 12 knows of its mirror's packages after ``apt-get update``; made once. Raises Unavailable."""
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.{os.getpid()}")
        half.mkdir(parents=True)
        (work / "debian.sources").write_text(SOURCE)
        words = ("bash", "-ec", LISTS, "bash", str(root("bookworm")), str(work), str(half))
        run("unshare", "--mount", "--propagation", "private", *words, timeout_s=600)
        half.rename(folder)
    return folder


def reachable(machine: Machine, host: str, path: str) -> None:
    """The machine finds a file of this host by https, as where there is a network: at itself, with a certificate that it trusts."""
    folder = machine.work / "web"
    folder.mkdir()
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    argv += ["-addext", f"subjectAltName=DNS:{host}", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(argv, capture_output=True, check=True)
    for name in ("key.pem", "cert.pem"):
        machine.root.joinpath("srv", name).write_bytes((folder / name).read_bytes())
    place = machine.root / "srv/web" / path
    place.parent.mkdir(parents=True)
    place.write_text("a key\n")
    machine.root.joinpath("srv/serve.py").write_text(SERVE)
    machine.sh(f"mkdir -p /usr/lib/ssl && cat /srv/cert.pem >>/usr/lib/ssl/cert.pem && echo '127.0.0.1 {host}' >>/etc/hosts")
    machine.sh("systemd-run --quiet --working-directory=/srv/web python3 /srv/serve.py")


def test_check_mode_goes_through_all_steps_of_a_driver(work: Path, bundle: Path, tmp_path: Path) -> None:
    """What Debian has is looked up; what only NVIDIA's repository would bring is named, and told as not looked up. Nothing is changed."""
    try:
        for name in ("lists", "debs"):
            (tmp_path / name).mkdir()
        known = lists(cached("ansible-lists-bookworm"), tmp_path / "lists")
        debs = repository(cached("ansible-repository-bookworm"), tmp_path / "debs")
    except Unavailable as why:
        pytest.skip(str(why))
    options = f"--bind-ro={known}:/srv/lists --bind-ro={debs}:/srv/repository"
    with machines(work, {"host": "bookworm"}, options) as (controller, made):
        machine = made["host"]
        machine.work.joinpath("machine/hardware").write_text(HARDWARE)
        machine.root.joinpath("usr/sbin/update-grub").write_text(BOOT_LOADER)
        machine.restart()
        machine.sh("rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*; cp -r /srv/lists/. /var/lib/apt/lists/")
        machine.root.joinpath("etc/apt/sources.list.d/debian.sources").write_text(SOURCE)
        machine.sh("dpkg -i --force-depends /srv/repository/python*apt*.deb /srv/repository/distro-info-data*.deb >/dev/null")
        plays = Plays(work, fleet.inventory(controller, made), controller)
        role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "tool"}}
        play = [{"hosts": "host", "gather_facts": False, "tasks": [role]}]
        assert plays.play(play, torchtune_sys_source=str(bundle)).status == 0
        machine.sh(f"{TOOL} --version")
        reachable(machine, "developer.download.nvidia.com", "compute/cuda/repos/debian12/x86_64/3bf863cc.pub")
        before = fleet.disk(machine)
        role["include_role"]["tasks_from"] = "install"
        played = plays.play(play, "--check", torchtune_sys_reboot=True, torchtune_sys_install_torch="2.13")
        (result,) = played.of("host", "torchtune_install_info")
        print([step["title"] for step in result["steps"]], result["refused"])
        assert played.status == 0, played.output[-5000:]
        assert {"driver", "torch"} <= {step["key"] for step in result["steps"]}
        asked = [
            names for one in played.of("host", "apt") if (names := arguments(one).get("name") or arguments(one).get("package"))
        ]
        told = [one["msg"] for one in played.of("host", "debug") if "msg" in one]
        print(asked, told)
        assert ["nvidia-driver-pinning-580"] in asked and ["gcc", "g++", "libc6-dev"] in asked
        assert any(words.startswith("nvidia-driver-pinning-580: No package matching") for words in told)
        unknown = {words.partition(":")[0] for words in told}
        assert not unknown & {"ca-certificates curl", "python3-venv", "gcc g++ libc6-dev", "python3-dev"}, "Debian has them"
        found = [one for one in played.of("host", "apt") if "gcc-12" in one.get("stdout", "")]
        assert found and found[0]["changed"], "apt says what it would install"
        touched = fleet.differing(before, fleet.disk(machine))
        assert [path for path in touched if not path.startswith(("/var/lib/apt/", "/var/lib/dpkg/lock"))] == []


def arguments(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result.get("invocation", {}).get("module_args", {})
    return found


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Two keys in files, and their fingerprints."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    made = {}
    for name in ("meant", "other"):
        home = tmp_path / f"gpg-{name}"
        home.mkdir(mode=0o700)
        argv = ["gpg", "--homedir", str(home), "--batch", "--passphrase", ""]
        subprocess.run([*argv, "--quick-gen-key", f"{name} <{name}@example.org>", "ed25519"], capture_output=True, check=True)
        subprocess.run([*argv, "--armor", "--output", str(tmp_path / f"{name}.asc"), "--export"], capture_output=True, check=True)
        listed = subprocess.run([*argv, "--list-keys", "--with-colons"], capture_output=True, text=True, check=True).stdout
        made[name] = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)
    return made


def test_a_repositorys_key_is_trusted_only_if_it_is_the_one_that_is_meant(
    work: Path, tmp_path: Path, keys: dict[str, str]
) -> None:
    """The keys and gpg are real. rpm and the tool's journal are scripts that write down what they are told: the one is not of Debian, the other is this host's own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    imported = tmp_path / "imported"
    scripts = {
        "rpm": f'case "$*" in --import*) cp "$2" {imported};; *gpg-pubkey*) cat {imported} 2>/dev/null;; esac',
        "torchtune-sys": f'echo "$@" >>{tmp_path}/noted',
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    here = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "ansible_become": False,
        "torchtune_sys_path": str(programs / "torchtune-sys"),
    }
    plays = Plays(work, {"here": here}, env={"PATH": f"{programs}:{os.environ['PATH']}"})
    kept = tmp_path / "kept.asc"

    def trust(url: Path, fingerprint: str) -> Played:
        action = {"type": "key", "path": str(kept), "url": url.as_uri(), "fingerprint": fingerprint}
        step = {"title": "Trust it", "actions": [action], "by_hand": "", "reboot": False}
        given: dict[str, Any] = {
            "torchtune_sys_step": step,
            "torchtune_sys_applied": {"run": None, "rebooted": [], "identity": "- -"},
        }
        role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "step"}}
        return plays.play([{"hosts": "here", "gather_facts": False, "tasks": [role]}], **given)

    both = tmp_path / "both.asc"
    both.write_bytes((tmp_path / "meant.asc").read_bytes() + (tmp_path / "other.asc").read_bytes())
    for url in (tmp_path / "other.asc", both):
        played = trust(url, keys["meant"])
        (failure,) = played.failed("here")
        print(failure.result["msg"])
        assert f"should be {keys['meant']}" in failure.result["msg"] and keys["other"] in failure.result["msg"]
        assert not kept.exists() and not imported.exists()
    for fingerprint in (keys["meant"], keys["meant"][-16:]):
        kept.unlink(missing_ok=True)
        imported.unlink(missing_ok=True)
        assert trust(tmp_path / "meant.asc", fingerprint).status == 0
        assert imported.read_bytes() == kept.read_bytes() == (tmp_path / "meant.asc").read_bytes()
    again = trust(tmp_path / "meant.asc", keys["meant"])
    assert again.status == 0 and again.changed("here") == [], again.output
    assert (tmp_path / "noted").read_text().count(f"trusted by Ansible: {kept}") == 2
