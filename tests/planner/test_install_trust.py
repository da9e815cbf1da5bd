"""What is trusted of what a script downloads: keys by their fingerprints, held against real apt, gpg and rpm's place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from install_plans import H100, SYSTEMS, WISHES, bare, step
from test_install_apt import repository as apt_repository

from torchtune_sys.knowledge import install as known
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.install import Installation, InstallFile, InstallOptions, InstallStep, Key
from torchtune_sys.remediation.install import trust
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.remediation.install.site import Site
from torchtune_sys.render.generate.install import shell

EVERYTHING = InstallOptions(extras=("container-toolkit", "cuda-toolkit", "jemalloc", "rdma"))
UNCHECKED = re.compile(
    r"auto-import|apt-key|rpm --import '?https?:|add-repo|\.repo https?:|dpkg --install|dpkg -i|trusted=yes|--nogpgcheck|--no-gpg-checks"
    r"|--allow-unauthenticated|curl[^\n]*\| *(ba)?sh|gpgkey=https?:"
)
"""What takes a key, or a package, as it comes."""


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
@pytest.mark.parametrize("wishes", [EVERYTHING, *WISHES])
def test_nothing_is_trusted_as_it_comes(system: tuple[str, str], wishes: InstallOptions) -> None:
    script = shell(plan(bare([H100] * 8, *system), wishes))
    assert not UNCHECKED.search(script), UNCHECKED.search(script)
    for text in re.findall(r"\.repo <<'END'$.*?^END", script, re.M | re.S):
        assert "gpgcheck=1" in text and "gpgkey=file:///" in text


def test_what_would_be_seen() -> None:
    found = plan(bare([H100] * 8, "rocky", "9.4"), EVERYTHING)
    assert len(re.findall(r"\.repo <<'END'$.*?^END", shell(found), re.M | re.S)) == 2
    for line in (
        "zypper --gpg-auto-import-keys refresh",
        "rpm --import https://x",
        "curl -fsSL https://x | sh",
        "gpgkey=http://x",
    ):
        assert UNCHECKED.search(line)


def test_every_repository_has_a_key() -> None:
    names = {row["repository"] for row in rows("install_systems")} - {""}
    assert names <= {row["name"] for row in rows("install_keys")}
    for row in rows("install_keys"):
        assert re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{8}", row["fingerprint"]), row
        assert row["source"] and row["confidence"] in ("high", "medium")


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
def test_what_is_not_pinned_is_said(system: tuple[str, str]) -> None:
    found = plan(bare([H100] * 8, *system), EVERYTHING)
    keys = [action for step in found.steps for action in step.actions if isinstance(action, Key)]
    short = {key.fingerprint for key in keys if len(key.fingerprint) < 40}
    assert short == {
        note.rpartition("end in ")[2].partition(";")[0] for note in found.notes if note.startswith("not pinned: the key")
    }
    assert bool(short) == (system[0] in ("almalinux", "rhel", "rocky", "ol") and system[1].startswith("10"))


# --- apt ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, str]]]:
    """Two keys, each as a home of gpg and a fingerprint."""
    if shutil.which("gpg") is None:
        pytest.skip("needs gpg")
    made = {}
    for name in ("meant", "other"):
        home = tmp_path_factory.mktemp(name)
        home.chmod(0o700)
        gpg(home, "--passphrase", "", "--quick-gen-key", f"{name} <{name}@example.org>", "ed25519", "sign", "never")
        listed = gpg(home, "--with-colons", "--list-keys")
        made[name] = (home, next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr")))
    yield made
    for home, _ in made.values():
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def gpg(home: Path, *words: str) -> str:
    options = ["gpg", "--homedir", str(home), "--batch", "--yes", "--pinentry-mode", "loopback"]
    return subprocess.run([*options, *words], capture_output=True, text=True, check=True).stdout


def public(keys: dict[str, tuple[Path, str]], *names: str) -> str:
    return "".join(gpg(keys[name][0], "--armor", "--export") for name in names)


def of_apt(url: str, fingerprint: str, key: Path) -> str:
    """The line of the plan for another place, and with the key somewhere else."""
    system = known.system("debian", "12")
    assert system is not None
    site = Site(system=system, os_id="debian", os_version="12", codename="bookworm", machine="x86_64", kernel="")
    pinned = known.SigningKey(url="", fingerprint=fingerprint, source="", confidence="")
    (file,) = [action for action in trust.of_apt(site, pinned, "kept", "/etc/x.list", url) if isinstance(action, InstallFile)]
    return file.text.replace("/usr/share/keyrings/kept.asc", str(key))


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
@pytest.mark.parametrize(
    ("served", "signs", "wanted"),
    [
        (("meant",), "meant", 0),
        (("other",), "other", 100),  # the server has another key, and all is signed with it
        (("meant", "other"), "other", 100),  # both, where only one is meant
        (("other", "meant"), "meant", 0),
    ],
)
def test_apt_takes_only_what_the_meant_key_has_signed(
    tmp_path: Path, keys: dict[str, tuple[Path, str]], served: tuple[str, ...], signs: str, wanted: int
) -> None:
    options = apt_repository(tmp_path, {"x"})
    flat = tmp_path / "flat"
    packages = (flat / "Packages").read_bytes()
    digest = subprocess.run(["sha256sum"], input=packages, capture_output=True, check=True).stdout.decode().split()[0]
    date = subprocess.run(["date", "-Ru"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "Release").write_text(f"Date: {date}\nSHA256:\n {digest} {len(packages)} Packages\n")
    gpg(keys[signs][0], "--output", str(flat / "InRelease"), "--clearsign", str(tmp_path / "Release"))
    (tmp_path / "key.asc").write_text(public(keys, *served))
    (tmp_path / "etc/sources.list").write_text(of_apt(f"file:{flat}/", keys["meant"][1], tmp_path / "key.asc"))
    done = subprocess.run(["apt-get", *options, "update"], capture_output=True, text=True, check=False)
    assert done.returncode == wanted, done.stdout + done.stderr
    shown = subprocess.run(["apt-cache", *options, "show", "x"], capture_output=True, text=True, check=False)
    assert ("Package: x" in shown.stdout) == (wanted == 0)


def test_apt_is_told_of_the_key_in_every_plan() -> None:
    for system in SYSTEMS:
        if system[0] not in ("ubuntu", "debian"):
            continue
        found = plan(bare([H100], *system), EVERYTHING)
        for name in ("repository", "container-toolkit"):
            (file,) = [
                item for item in step(found, name).actions if isinstance(item, InstallFile) and item.path.endswith(".list")
            ]
            assert re.search(r"deb \[signed-by=/usr/share/keyrings/[\w.-]+\.asc,[0-9A-F]{40}] https://\S+ /\n$", file.text)


# --- rpm ---------------------------------------------------------------------------------------------------------------


def trusting(key: Key) -> str:
    """The script of a plan that only trusts a key."""
    only = InstallStep(key="x", title="a key", actions=(key,), why="w", source="s")
    return shell(Installation(host="h", origin="o", system="s", steps=(only,)))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("curl") is None, reason="needs root and curl")
@pytest.mark.parametrize(
    ("served", "digits", "trusted"),
    [
        (("meant",), 40, True),
        (("meant",), 8, True),
        (("other",), 40, False),
        (("other",), 8, False),
        (("meant", "other"), 40, False),  # rpm would import both
        (("other", "meant"), 40, False),
        (("other", "meant"), 8, False),
        ((), 40, False),
    ],
)
def test_a_key_is_trusted_only_if_it_is_the_one(
    tmp_path: Path, keys: dict[str, tuple[Path, str]], served: tuple[str, ...], digits: int, trusted: bool
) -> None:
    (tmp_path / "served").write_text(public(keys, *served) if served else "<html>not here</html>\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/rpm").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/imported\n')
    (tmp_path / "bin/rpm").chmod(0o755)
    kept = tmp_path / "keys/kept.asc"
    key = Key(path=str(kept), url=(tmp_path / "served").as_uri(), fingerprint=keys["meant"][1][-digits:])
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["bash", "-c", trusting(key)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if trusted else 3), done.stdout + done.stderr
    assert kept.exists() is (tmp_path / "imported").exists() is trusted
    assert trusted or "not trusted" in done.stderr
    assert not list(tmp_path.glob("tmp.*"))


def test_the_check_of_the_key_can_fail(tmp_path: Path, keys: dict[str, tuple[Path, str]]) -> None:
    """Without the comparison the wrong key would be trusted: it is that which stops it."""
    key = Key(path=str(tmp_path / "kept"), url="file:///x", fingerprint=keys["meant"][1])
    assert trusting(key).count('if [[ ${found} != *"$3"') == 1


def test_the_json_of_a_key() -> None:
    key = Key(path="/a", url="https://x", fingerprint="A" * 40)
    assert msgspec.json.decode(msgspec.json.encode(key))["type"] == "key"
