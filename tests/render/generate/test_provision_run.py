"""What the script of the stages does in a root of its own: twice, in parts, where a step fails, and what it says at the end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from provisions import MADE_FOR, PLAIN, SMOKE, TORCH, calls, of_steps, step, working_root
from script_root import Root, may_mount, needs_root

from torchtune_sys.model.install import InstallRefused
from torchtune_sys.render.generate.provision import provisioning


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return working_root(tmp_path / "root")


@needs_root
def test_twice(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    dry = root.run(text, "--dry-run")
    assert dry.returncode == 0 and "would install gcc make" in dry.stdout and calls(root) == []
    assert root.run(text, "--check").returncode == 1 and root.run(text, "--status").returncode == 3
    first = root.run(text)
    assert first.returncode == 0, first.stdout + first.stderr
    assert root.text("/etc/deep/x.conf") == "a\nb\n" and "thing two words $(x) " in calls(root)
    assert [line.split(":")[1].strip()[:4] for line in first.stdout.splitlines() if line.startswith("install")] == ["done"] * 3
    root.path("/tmp/calls").unlink()
    second = root.run(text)
    assert second.returncode == 0 and second.stdout.count("nothing to do") == 3 and calls(root) == []
    assert root.run(text, "--check").returncode == 0
    status = root.run(text, "--status")
    assert status.returncode == 0 and "verdict: proven" in status.stdout
    root.path("/etc/deep/x.conf").write_text("changed")
    assert root.run(text, "--check").returncode == 1
    assert root.run(text).returncode == 0 and root.text("/etc/deep/x.conf") == "a\nb\n"


@pytest.mark.sampled(2)
@needs_root
@pytest.mark.parametrize(
    ("code", "wanted", "words"),
    [("1", 1, "not proven"), ("3", 3, "could not be told"), ("126", 3, "does not start"), ("139", 1, "ended with 139")],
)
def test_the_verdict_is_the_exit_status(root: Root, code: str, wanted: int, words: str) -> None:
    root.put("/tmp/verdict", code)
    text = provisioning(PLAIN, SMOKE)
    done = root.run(text)
    assert done.returncode == wanted and words in done.stdout
    assert root.run(text, "--status").returncode == wanted


@needs_root
def test_a_step_that_fails_ends_it(root: Root) -> None:
    root.put("/tmp/fail", "")
    text = provisioning(PLAIN, SMOKE)
    done = root.run(text)
    assert done.returncode == 1 and "E: broken" in done.stdout and "stopped at install 1/3" in done.stdout
    assert not root.path("/etc/deep").exists()
    root.path("/tmp/fail").unlink()
    assert root.run(text).returncode == 0


@needs_root
def test_what_is_refused_or_a_person_s_comes_first(root: Root) -> None:
    refused = InstallRefused(key="torch", what="torch", reason="no wheel", way="another host")
    done = root.run(provisioning(msgspec.structs.replace(PLAIN, refused=(refused,)), SMOKE))
    assert done.returncode == 1 and "refused: torch: no wheel" in done.stdout and calls(root) == []
    by_hand = provisioning(msgspec.structs.replace(PLAIN, by_hand=(step("driver", by_hand="https://example.org/"),)), SMOKE)
    done = root.run(by_hand)
    assert done.returncode == 3 and "https://example.org/" in done.stdout and calls(root) == []
    assert root.run(by_hand, "--done-by-hand").returncode == 0
    noted = msgspec.structs.replace(PLAIN, notes=("by hand: EPEL: a page", "nothing to worry about"))
    done = root.run(provisioning(noted, SMOKE))
    assert done.stdout.startswith("by hand: EPEL: a page\n") and "worry" not in done.stdout


@needs_root
@pytest.mark.parametrize(
    "words",
    [("--stages", "tune"), ("--stages",), ("--offline", "x"), ("--reboot-after", "x"), ("--level", "x"), ("--check=1",), ("x",)],
)
def test_usage(root: Root, words: tuple[str, ...]) -> None:
    done = root.run(provisioning(PLAIN, SMOKE), *words)
    assert done.returncode == 2 and "usage:" in done.stderr and not root.path("/var/lib/torchtune-sys").exists()


@needs_root
@pytest.mark.parametrize("stages", ["install", "smoke"])
def test_some_stages_alone(root: Root, stages: str) -> None:
    done = root.run(provisioning(PLAIN, SMOKE), "--stages", stages)
    assert done.returncode == 0 and ("nothing was proven" in done.stdout) == (stages == "install")
    assert root.path("/etc/deep").exists() == (stages == "install")


@needs_root
@pytest.mark.skipif(not may_mount(), reason="needs a mount namespace")
@pytest.mark.parametrize(("places", "wanted"), [(("tmp",), 0), (("tmp", "var"), 3)])
def test_where_nothing_may_be_started_is_no_place_to_train(root: Root, places: tuple[str, ...], wanted: int) -> None:
    """What torch.compile builds is loaded from the folder for temporary files."""
    stage = (
        "; ".join(f"mount -t tmpfs -o noexec none {root.path(place)}" for place in places) + f"; mkdir -p {root.path('var/log')}"
    )
    done = root.run(provisioning(of_steps(stages=("smoke",)), SMOKE), stage=stage)
    assert done.returncode == wanted and ("programs may be started" in done.stdout) == bool(wanted), done.stdout


HERE = {
    "/etc/os-release": 'NAME="Rocky Linux"\nID="rocky"\nVERSION_ID="9.4"\n',
    "/proc/stat": "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nctxt 5\n",
    "/proc/meminfo": "MemTotal:        1040000 kB\n",
    "/sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
}
ELSEWHERE = {
    "/etc/os-release": ("ID=rocky\nVERSION_ID=90\n", "the operating system is rocky 90 here and was rocky 9 there"),
    "/proc/stat": ("cpu  1 2\ncpu0 1 2\n", "the number of CPUs is 1 here and was 2 there"),
    "/proc/meminfo": ("MemTotal:  4000000 kB\n", "the memory is 3906 MiB here and was 1024 MiB there"),
    "/sys/bus/pci/devices/0000:01:00.0/class": ("0x020000\n", "the number of NVIDIA GPUs is 0 here and was 1 there"),
}


@pytest.mark.sampled(2)
@needs_root
@pytest.mark.parametrize("path", ELSEWHERE)
def test_it_stops_on_another_host_than_it_was_made_for(root: Root, path: str) -> None:
    text = provisioning(PLAIN, SMOKE, MADE_FOR)
    for name, content in HERE.items():
        root.put(name, content)
    changed, words = ELSEWHERE[path]
    root.put(path, changed)
    dry = root.run(text, "--dry-run")
    assert dry.returncode == 0 and words in dry.stderr + dry.stdout
    stopped = root.run(text)
    assert stopped.returncode == 3 and words in stopped.stderr + stopped.stdout and "--force" in stopped.stderr, stopped
    assert calls(root) == [] and root.run(text, "--status").returncode == 3
    assert root.run(text, "--force").returncode == 0 and calls(root) != []
    for name, content in HERE.items():
        root.put(name, content)
    assert root.run(text).returncode == 0


@needs_root
def test_on_the_host_that_it_was_made_for_torch_is_not_taken_for_installed(root: Root) -> None:
    """Two functions had one name, and the check of the host took the place of the one of torch's version."""
    for name, content in HERE.items():
        root.put(name, content)
    text = provisioning(of_steps(step("torch", TORCH), stages=("install",), environment=TORCH), SMOKE, MADE_FOR)
    assert root.run(text, "--check").returncode == 1
    assert "would put torch==2.13.0 into /opt/torch" in root.run(text, "--dry-run").stdout


@needs_root
def test_what_it_changed_itself_stops_no_later_start(root: Root) -> None:
    """The release of the system, by its own packages, before the start that it asked for."""
    for name, content in HERE.items():
        root.put(name, content)
    text = provisioning(msgspec.structs.replace(PLAIN, stages=("install",)), SMOKE, MADE_FOR)
    assert root.run(text).returncode == 0
    root.put("/etc/os-release", "ID=rocky\nVERSION_ID=10.0\n")
    assert root.run(text).returncode == 3 and root.run(text, "--resume").returncode == 0
