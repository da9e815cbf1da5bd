"""From a host without torch to a proven one by the playbook provision: real packages out of a repository, the real torch out of its wheels, a real training."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fleet
import pytest
from controller import Plays
from guest import cached
from ssh_machines import Machine, Unavailable, machines, root, run

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

PACKAGES = "gcc g++ libc6-dev python3-dev python3-venv python3-apt"
"""The last for Ansible itself."""
FETCH = """
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc" && mount --bind /dev "$2/root/dev" && mount --bind "$3" "$2/root/mnt"
touch "$2/root/etc/resolv.conf" && mount --bind /etc/resolv.conf "$2/root/etc/resolv.conf" && mkdir "$3/partial"
chroot "$2/root" sh -ec "apt-get update -qq && apt-get install -y -qq --no-install-recommends --download-only -o Dir::Cache::archives=/mnt $4"
"""


def repository(folder: Path, work: Path) -> Path:
    """What apt is asked for, out of the distribution's mirror, with an index of its own; made once. Raises Unavailable."""
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.{os.getpid()}")
        half.mkdir(parents=True)
        words = ("bash", "-ec", FETCH, "bash", str(root("bookworm")), str(work), str(half), PACKAGES)
        run("unshare", "--mount", "--propagation", "private", *words, timeout_s=600)
        rows = []
        for path in sorted(half.glob("*.deb")):
            told = subprocess.run(["dpkg-deb", "-f", str(path)], capture_output=True, text=True, check=True).stdout.strip()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            rows.append(f"{told}\nFilename: ./{path.name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n")
        (half / "Packages").write_text("\n".join(rows))
        half.rename(folder)
    return folder


@pytest.fixture
def host(work: Path, tmp_path: Path, bundle: Path) -> Iterator[tuple[Plays, Machine]]:
    wheels = cached("offline-bookworm") / "wheels"
    if not wheels.is_dir():
        pytest.skip("torch's wheels are not there: tests/vm/test_provision.py fetches them")
    try:
        debs = repository(cached("ansible-repository-bookworm"), tmp_path)
    except Unavailable as why:
        pytest.skip(str(why))
    options = f"--bind-ro={debs}:/srv/repository --bind-ro={wheels}:/srv/wheels"
    with machines(work, {"host": "bookworm"}, options) as (controller, made):
        machine = made["host"]
        with suppress(FileNotFoundError):
            (machine.root / "etc/apt/sources.list").unlink()
        machine.sh("rm -f /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] file:/srv/repository ./' >/etc/apt/sources.list")
        machine.sh("printf '[global]\\nfind-links = /srv/wheels\\nretries = 0\\n' >/etc/pip.conf")
        yield Plays(work, fleet.inventory(controller, made), controller), machine


def test_from_bare_to_proven(host: tuple[Plays, Machine], bundle: Path) -> None:
    plays, machine = host
    wishes = {"torchtune_sys_install_cpu": True, "torchtune_sys_install_torch": "2.13", "torchtune_sys_smoke_level": "quick"}
    first = plays.play("torchtune.sys.provision", torchtune_sys_source=str(bundle), **wishes)
    assert first.status == 0, first.output[-6000:]
    (smoked,) = first.of("host", "torchtune_smoke")
    print(smoked["headline"], "|", machine.sh("/opt/torch/bin/python -c 'import torch; print(torch.__version__)'").strip())
    assert smoked["verdict"] == "pass"
    noted = " ".join(machine.sh("torchtune-sys history").split())
    print(noted)
    assert "installed by Ansible: gcc g++ libc6-dev" in noted and "installed by Ansible into /opt/torch: torch==2.13.0" in noted
    again = plays.play("torchtune.sys.provision", torchtune_sys_source=str(bundle), **wishes)
    assert again.status == 0 and again.changed("host") == [], again.output[-6000:]
    refused = plays.play("torchtune.sys.provision", **{**wishes, "torchtune_sys_install_torch": "9.9"})
    assert refused.status != 0 and refused.of("host", "torchtune_smoke") == [], refused.output[-3000:]
    print(refused.failed("host")[0].result["msg"])
    assert "9.9" in refused.failed("host")[0].result["msg"]
