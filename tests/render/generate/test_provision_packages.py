"""How the script of the stages installs packages: nothing removed, lists that do not come, folders, sums, kernels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from jinja2 import TemplateNotFound
from provisions import APT, PLAIN, SMOKE, TALK, calls, of_steps, step, working_root
from script_root import Root, needs_root

from torchtune_sys.knowledge.install import System
from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.install import RUNNING, KernelPackages, Key, Packages
from torchtune_sys.render.generate.provision import provisioning


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return working_root(tmp_path / "root")


def test_each_manager_has_its_template() -> None:
    for family in sorted({row["family"] for row in rows("install_systems")}):
        manager = System(family=family, repository="", source="", confidence="").manager
        try:
            provisioning(of_steps(step("gcc", Packages(manager=manager, names=("gcc",)))), SMOKE)
        except TemplateNotFound as error:
            pytest.fail(f"templates/{error.name} is missing, or templates/provision/packages.sh.j2 names another for {manager}")


@needs_root
def test_nothing_is_removed(root: Root) -> None:
    root.put("/tmp/removes", "")
    done = root.run(provisioning(PLAIN, SMOKE))
    assert done.returncode == 3 and "would remove keepme" in done.stdout
    assert not any(
        " install --yes --no-remove" in line or "install --yes --" in line for line in calls(root) if "--simulate" not in line
    )
    assert root.run(provisioning(PLAIN, SMOKE), "--allow-remove").returncode == 0


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 11 (apt-get)"
AWAY = "E: Failed to fetch http://example.org/InRelease  Temporary failure resolving"


@pytest.mark.sampled(2)
@needs_root
@pytest.mark.parametrize(
    ("words", "times", "strict", "wanted"),
    [
        (LOCKED, 5, False, 0),  # another apt works after the first start of a fresh image
        (AWAY, 2, False, 0),  # the network is not up yet
        (AWAY, 99, True, 0),  # a repository that stays away, and is not needed
        (AWAY, 99, False, 1),
    ],
)
def test_lists_that_cannot_be_had_at_once(root: Root, words: str, times: int, strict: bool, wanted: int) -> None:
    when = ' && [[ " $* " == *Error-Mode=any* ]]' if strict else ""
    fails = f"""
if [[ " $* " == *" update "* ]]{when}; then
    echo x >>/tmp/updates
    mapfile -t updates </tmp/updates
    if ((${{#updates[@]}} <= {times})); then
        echo "{words}"
        exit 100
    fi
fi
"""
    root.put("/bin/apt-get", TALK + 'set -- "$@" ""\n' + fails + 'set -- "${@:1:$#-1}"\n' + APT.removeprefix(TALK), 0o755)
    root.put("/bin/sleep", "#!/bin/bash\n", 0o755)
    done = root.run(provisioning(PLAIN, SMOKE))
    assert done.returncode == wanted, done.stdout
    assert wanted == 0 or "apt-get update failed" in done.stdout


@needs_root
def test_a_folder_is_filled_where_it_was_named(root: Root) -> None:
    text = provisioning(of_steps(*PLAIN.steps[:1], stages=("install",)), SMOKE)
    assert root.run(text, "--download", "").returncode == 2
    root.run(text, "--download", "stick")
    words = next(line for line in calls(root) if "--download-only" in line)
    assert "Dir::Cache::archives=//stick/packages/" in words  # apt: what is not absolute lies in its own cache


@needs_root
@pytest.mark.parametrize(("sums", "wanted"), [("right", 0), ("wrong", 3)])
def test_packages_alone_are_held_against_their_sums(root: Root, sums: str, wanted: int) -> None:
    content = b"a package"
    root.put("/bin/dpkg-deb", TALK, 0o755)
    root.put("/stick/tool_1_all.deb", content)
    digest = hashlib.sha256(content if sums == "right" else b"another").hexdigest()
    root.put("/stick/SHA256SUMS", f"{digest}  ./tool_1_all.deb\n")
    made = of_steps(step("tool", Packages(names=("tool",), manager="apt")), stages=("install",))
    done = root.run(provisioning(made, SMOKE), "--offline", "/stick")
    assert done.returncode == wanted and ("SHA256SUMS" in done.stdout) == bool(wanted), done.stdout


@needs_root
def test_packages_by_the_kernel_that_runs(root: Root) -> None:
    root.put("/bin/uname", "#!/bin/bash\necho 5.15.0-9.el9uek.x86_64\n", 0o755)
    choices = (("6.*", ("wrong",)), ("*uek*", (f"devel-{RUNNING}", "headers")), ("*", ("wrong",)))
    text = provisioning(of_steps(step("headers", KernelPackages(manager="apt", choices=choices))), SMOKE)
    assert root.run(text).returncode == 0
    assert sorted(path.name for path in root.path("/tmp/have").iterdir()) == ["devel-5.15.0-9.el9uek.x86_64", "headers"]
    again = root.run(text)
    assert again.returncode == 0 and "nothing to do" in again.stdout


FINGERPRINT = "610C7B14E068A878070DA4E99CD0A493D42D0685"
GPG = TALK + "cat /tmp/listed\n"
"""As gpg --show-keys --with-colons prints it."""


def listed(*fingerprints: str) -> str:
    sub = "sub:-:4096:1:0000000000000000:1:::::s:\nfpr:::::::::" + "0" * 40 + ":\n"
    return "".join(
        f"pub:-:4096:1:{print_[-16:]}:1:::-:::scESC:\nfpr:::::::::{print_}:\nuid:-::::1::X::x:\n{sub}" for print_ in fingerprints
    )


@pytest.mark.sampled(3)
@needs_root
@pytest.mark.parametrize(
    ("wanted", "found", "trusted"),
    [
        (FINGERPRINT, (FINGERPRINT,), True),
        (FINGERPRINT[-8:], (FINGERPRINT,), True),
        (FINGERPRINT, ("F" * 40,), False),
        (FINGERPRINT, ("F" * 40, FINGERPRINT), False),  # rpm would import both
        (FINGERPRINT, (FINGERPRINT, "F" * 40), False),
        (FINGERPRINT, (), False),
        ("0" * 40, (FINGERPRINT,), False),  # a subkey's
    ],
)
def test_a_key_is_trusted_only_if_it_is_the_one(root: Root, wanted: str, found: tuple[str, ...], trusted: bool) -> None:
    root.put("/tmp/listed", listed(*found))
    root.put("/bin/gpg", GPG, 0o755)
    root.put("/bin/rpm", TALK, 0o755)
    root.put("/bin/install", TALK + "mkdir -p /keys && : >/keys/kept.asc\n", 0o755)
    key = Key(path="/keys/kept.asc", url="https://example.org/key", fingerprint=wanted)
    text = provisioning(of_steps(step("repository", key), stages=("install",)), SMOKE)
    done = root.run(text)
    imported = any(line.startswith("rpm --import /keys/kept.asc") for line in calls(root))
    assert (done.returncode == 0) is imported is trusted, done.stdout
    assert trusted or "not trusted" in done.stdout
    again = root.run(text)
    assert (again.returncode == 0) is trusted
    assert sum(line.startswith("rpm --import") for line in calls(root)) == int(trusted)  # once is enough


RPM = "#!/bin/bash\n[[ -e /tmp/have/${!#} ]]\n"
DNF = (
    TALK
    + 'if [[ $* == *--assumeno* ]]; then printf "\\nOperation aborted.\\n"; exit 1; fi\nmkdir -p /tmp/have\n: >"/tmp/have/${!#}"\n'
)
MICRODNF = TALK + "[[ -e /tmp/dnf ]] && cp /tmp/dnf /bin/dnf\n"


@needs_root
@pytest.mark.parametrize("brings", [True, False])
def test_where_microdnf_stands_in_for_dnf_it_installs_dnf_first(root: Root, brings: bool) -> None:
    """Minimal images of RHEL: the script ended with "dnf: command not found"."""
    root.put("/bin/rpm", RPM, 0o755)
    root.put("/bin/microdnf", MICRODNF, 0o755)
    if brings:
        root.put("/tmp/dnf", DNF, 0o755)
    done = root.run(provisioning(of_steps(step("gcc", Packages(manager="dnf", names=("gcc",)))), SMOKE))
    first, *others = [line.strip() for line in calls(root) if "dnf" in line]
    assert first == "microdnf install --assumeyes dnf"
    if brings:
        assert done.returncode == 0, done.stdout
        assert others[-1] == "dnf install --assumeyes gcc" and not any("microdnf" in line for line in others)
    else:
        assert done.returncode == 1 and "it has not installed dnf" in done.stdout and not others
