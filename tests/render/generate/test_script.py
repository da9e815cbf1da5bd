"""What generated scripts do where something is in the way: run in a root that holds bash and coreutils alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from provisions import PLAIN, SMOKE
from script_plans import FILE, HOSTILE, SWAP, change, plan, sysctl
from script_root import Root, needs_mounts, needs_root

from torchtune_sys.model.actions import OwnedFile
from torchtune_sys.model.plan import FileLine, Unit, Value
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.target import AtLeast, AtMost, OneOf, Target
from torchtune_sys.remediation.plan import files
from torchtune_sys.render.generate.provision import provisioning
from torchtune_sys.render.generate.script import quote, script


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@given(st.lists(st.text(st.characters(exclude_categories=[], exclude_characters="\0"), max_size=30), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_quoted_word_is_that_word(words: list[str]) -> None:
    words = [word.encode("utf-8", "replace").decode() for word in words] + [HOSTILE, "a\udcffb"]
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {' '.join(map(quote, words))}"], capture_output=True, env={"LC_ALL": "C"}, check=True
    )
    assert told.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)


def test_a_word_with_nul_names_nothing_else() -> None:
    word = quote("a\0b")
    assert subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout == "a\ufffdb".encode()


PIECES = st.sampled_from(
    [
        *(files.HEAD, "", "", "# vm.b (rule): why", "vm.b = 2", "# vm.swappiness (x): y", "vm.swappiness = 60", "#  (x): y"),
        *(" ", "\t", "# by hand", "vm.c=3", "# z", "$(touch /hit)", "a]b['x'\"", "@", "*", "\\n \\", "é ü"),
        *(
            "# l (x, y-1; 2 lines): z",
            "# l (x; 08 lines): z",
            "# l (x; 0 lines): y",
            "# l (x; y): z",
            "# (x): y",
            "# a (B): y",
            "\r",
        ),
    ]
)


@needs_root
@given(st.lists(st.tuples(st.lists(PIECES, max_size=12), st.sampled_from(["", "\n", "\n\n"])), min_size=6, max_size=6))
@example(
    [
        (["# mine", "vm.c=3", "", "# mine", "vm.d=3"], "\n"),
        ([files.HEAD, "", "# vm.swappiness (x): y", "vm.swappiness = 60", "vm.c=3", "# z"], "\n"),
        (["# note (x): y", "a", "", "# note (x): y", "b", "# vm.b (rule): why", "vm.b = 2", "c"], ""),
        (["# l (x; 2 lines): z", "a", "b", "c", "", "# k (x; 2 lines): z", "a", "", "b"], "\n\n"),
        (["# l (x; 2 lines): z", "# l (x; 2 lines): z", "a", files.HEAD, "# l (x): z", "b"], "\n"),
        (
            ["# a]b['x'\"$(touch /hit) (r): y", "a", "", '# KERNEL=="nvme*" x (r): y', "b", "", "# @ (r): y", "c", "# * (r): y"],
            "\n",
        ),
        (["vm.z = 1", "", "vm.a = 1", "", "vm.z = 2", " ", "", " "], "\n"),
    ]
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_that_are_there_are_joined_as_the_planner_does(root: Root, contents: list[tuple[list[str], str]]) -> None:
    present = {f"/etc/x/{number}.conf": "\n".join(lines) + end for number, (lines, end) in enumerate(contents)}
    lines = [FileLine(path=path, key="vm.swappiness", text="vm.swappiness = 10") for path in present]
    wanted = plan(change("vm.swappiness", *lines), ground=PlanContext(files=dict(present)))
    for path, content in present.items():
        root.put(path, content, 0o640)
        os.chown(root.path(path), 7, 8)
        os.setxattr(root.path(path), "trusted.torchtune", b"\0kept")
    before = root.state()
    ran = root.run(script(wanted))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {f.path: root.path(f.path).read_bytes() for f in wanted.files} == {f.path: f.content.encode() for f in wanted.files}
    assert not root.path("/hit").exists()
    assert root.run(script(wanted), "--undo").returncode == 0
    assert root.state() == before


@needs_root
def test_a_user_who_is_called_0_is_given_no_file_of_root_s(root: Root) -> None:
    """chown(1) takes a name before a number, but one with a sign."""
    root.put("/etc/passwd", "root:x:0:0::/:/bin/sh\n0:x:4711:4711::/:/bin/sh\n")
    root.put("/etc/group", "root:x:0:\n0:x:4711:\n")
    line = FileLine(path="/etc/x/1.conf", key="vm.swappiness", text="vm.swappiness = 10")
    ran = root.run(script(plan(change("vm.swappiness", line), ground=PlanContext(files={}))))
    written = root.path("/etc/x/1.conf").stat()
    assert (ran.returncode, written.st_uid, written.st_gid) == (0, 0, 0), ran


@pytest.mark.sampled(4)
@needs_root
@pytest.mark.parametrize(
    ("held", "target", "wanted", "left"),
    [
        ("5", AtMost(10), "10", "5"),
        ("11", AtMost(10), "10", "10"),
        ("18446744073692774399", AtLeast(2**63), str(2**63), "18446744073692774399"),
        ("007", AtLeast(8), "8", "8"),
        ("-1", AtLeast(5), "5", "5"),
        ("-1", AtMost(5), "5", "-1"),
        ("4096 131072 67108864", AtLeast(16777216), "4096 131072 16777216", "4096 131072 67108864"),
        ("4096\t131072\t6291456", AtLeast(16777216), "4096 131072 16777216", "4096 131072 16777216"),
        ("always", OneOf(("madvise", "always")), "madvise", "always"),
        ("never", OneOf(("madvise", "always")), "madvise", "madvise"),
        ("always [madvise] never", OneOf(("madvise", "always")), "madvise", "madvise"),
    ],
)
def test_what_is_better_stays_and_is_not_written_into_the_file(
    root: Root, held: str, target: Target, wanted: str, left: str
) -> None:
    root.put(SWAP, held + "\n")
    text = script(plan(sysctl(SWAP, wanted, target)))
    assert root.run(text).returncode == 0
    now = root.text(SWAP).split()
    assert now == left.split() or now == held.split()
    assert root.path(FILE).exists() == (left == wanted)
    assert root.run(text, "--check").returncode == 0


@needs_root
def test_other_numbers_of_a_better_host_are_not_lowered(root: Root) -> None:
    root.put(SWAP, "8192 262144 6291456\n")
    ran = root.run(script(plan(sysctl(SWAP, "4096 131072 16777216", AtLeast(16777216)))))
    assert ran.returncode == 1 and "plan was made" in ran.stderr
    assert root.text(SWAP) == "8192 262144 6291456\n" and not root.path(FILE).exists()


@needs_root
def test_a_value_that_this_host_lacks_is_never_written(root: Root) -> None:
    ran = root.run(script(plan(sysctl(SWAP, "10"))))
    assert ran.returncode == 0 and "not on this host" in ran.stdout
    assert not root.path(SWAP).exists() and not root.path(FILE).exists()


@needs_root
def test_a_value_that_cannot_be_read_fails(root: Root) -> None:
    root.path(SWAP).mkdir(parents=True)
    before = root.state()
    ran = root.run(script(plan(sysctl(SWAP, "10"))))
    assert ran.returncode == 1 and "cannot be read" in ran.stderr
    assert root.state() == before
    assert root.run(script(plan(sysctl(SWAP, "10"))), "--check").returncode == 1


@needs_mounts
def test_a_refused_value_takes_its_change_back_and_the_others_go_on(root: Root) -> None:
    other, good = "/sys/a b/x", "/proc/sys/vm/good"
    for path in (SWAP, other, good):
        root.put(path, "60\n")
    before = root.state()
    both = change(
        "both", Value(path=SWAP, value="10"), Value(path=other, value="1"), FileLine(path=FILE, key="both", text="both")
    )
    text = script(plan(both, sysctl(good, "5")))
    ran = root.run(text, stage='mount --bind "sys/a b" "sys/a b"; mount -o remount,ro,bind "sys/a b"')
    assert ran.returncode == 1 and "/sys/a b/x does not take 1" in ran.stderr
    assert (root.text(SWAP), root.text(good)) == ("60\n", "5\n")
    assert "both" not in root.text(FILE) and "good = 5" in root.text(FILE)
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


@needs_mounts
@pytest.mark.parametrize(
    "stage",
    [
        pytest.param("mount --bind etc etc; mount -o remount,ro,bind etc", id="read-only /etc"),
        pytest.param("mount --bind var/lib var/lib; mount -o remount,ro,bind var/lib", id="read-only /var/lib"),
        pytest.param("mount -t tmpfs -o size=4k,nr_inodes=1 none var/lib", id="no inodes for the state"),
        pytest.param(
            "mount -t tmpfs -o size=8k none var/lib; head -c 8192 /dev/zero >var/lib/full || true", id="no room for the state"
        ),
        pytest.param("mount -t tmpfs -o size=8k none etc; head -c 8192 /dev/zero >etc/full || true", id="no room in /etc"),
    ],
)
def test_a_disk_that_takes_nothing(root: Root, stage: str) -> None:
    root.put(SWAP, "60\n")
    before = root.state()
    text = script(plan(sysctl(SWAP, "10")))
    ran = root.run(text, stage=stage)
    assert ran.returncode == 1 and "failed: " in ran.stderr
    assert not [name for name in root.state() if "torchtune-sys" in name and name.startswith("etc")]
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


@needs_root
@pytest.mark.parametrize("log", ["/nowhere/x.log", "/etc"])
def test_a_log_that_cannot_be_written_is_no_matter(root: Root, log: str) -> None:
    root.put(SWAP, "60\n")
    ran = root.run(script(plan(sysctl(SWAP, "10"))), TORCHTUNE_SYS_LOG=log)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert root.text(SWAP) == "10\n"


@needs_root
def test_what_the_environment_asks_of_shells_and_programs_is_no_matter(root: Root) -> None:
    root.put(SWAP, "60\n")
    root.put("/etc/x.conf", "# mine\n")
    os.mkfifo(root.path("/tmp/log"))
    text = script(plan(change("x", Value(path=SWAP, value="10"), FileLine(path="/etc/x.conf", key="x", text="x = 1"))))
    odd = {"SHELLOPTS": "noglob:noclobber", "POSIXLY_CORRECT": "1", "GLOBIGNORE": "*", "TORCHTUNE_SYS_LOG": "/tmp/log"}
    before = root.state()
    ran = root.run(text, **odd)
    assert (ran.returncode, ran.stderr) == (0, "") and root.text(SWAP) == "10\n"
    ran = root.run(text, "--undo", **odd)
    assert (ran.returncode, ran.stderr) == (0, "") and root.state() == before


@needs_root
def test_bytes_that_bash_cannot_hold_are_not_lost(root: Root) -> None:
    root.put("/etc/x.conf", b"# a\0b \xff\n")
    ran = root.run(script(plan(change("x", FileLine(path="/etc/x.conf", key="x", text="x = 1")))))
    assert (ran.returncode, ran.stderr) == (1, "failed: /etc/x.conf holds NUL bytes, so its lines cannot be kept\n")
    assert root.path("/etc/x.conf").read_bytes() == b"# a\0b \xff\n"


@pytest.mark.parametrize("shell", ["dash", "busybox sh"])
def test_another_shell_says_which_it_wants(shell: str) -> None:
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"needs {shell}")
    ran = subprocess.run(shell.split(), input=script(plan(sysctl(SWAP, "10"))), text=True, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.startswith(
        "this needs bash 4.3 or later, is run by another shell, and"
    )


@pytest.mark.parametrize("version", ["4.2.46(2)-release", "3.2.57(1)-release"])
def test_an_older_bash_does_nothing(version: str, tmp_path: Path) -> None:
    """The script of the stages said so, and went on: bash goes on behind a "return" where nothing is sourced."""
    (tmp_path / "older").write_text(f"BASH_VERSION='{version}'\n")  # which bash reads first
    for text, status in (script(plan(sysctl(SWAP, "10"))), 2), (provisioning(PLAIN, SMOKE), 3):
        place = tmp_path / "mine.sh"
        place.write_text(text)
        for words in (["bash", place, "--dry-run"], ["bash", "-c", f". {place}; exit $?"]):
            ran = subprocess.run(
                words, env={**os.environ, "BASH_ENV": str(tmp_path / "older")}, text=True, capture_output=True, check=False
            )
            assert (ran.returncode, ran.stdout) == (status, "") and f"is run by {version}, and has changed nothing" in ran.stderr


def test_another_shell_names_the_file_to_give_to_bash(tmp_path: Path) -> None:
    place = tmp_path / "mine.sh"
    place.write_text(script(plan(sysctl(SWAP, "10"))))
    said = [
        subprocess.run(words, text=True, capture_output=True, check=False).stderr
        for words in (["sh", place], ["bash", "-c", f". {place}"])
    ]
    assert all(f": bash {place}" in each for each in said if "bash" in each) and "must not be sourced" in said[1]


@needs_root
def test_the_log_says_what_was_done(root: Root) -> None:
    root.put(SWAP, "60\n")
    text = script(plan(sysctl(SWAP, "10")))
    root.run(text, "--dry-run")
    assert not root.path("/var/log/torchtune-sys.log").exists()
    root.run(text)
    assert f"{SWAP}: 60 -> 10" in root.text("/var/log/torchtune-sys.log")


@needs_root
def test_whatever_the_host_says_stays_data(root: Root) -> None:
    place = "/sys/" + HOSTILE.removeprefix("/sys/")
    root.put(place, "old\n")
    words = " ".join(HOSTILE.replace("[", "(").split())
    steps = (
        Value(path=place, value=words),
        FileLine(path=f"/etc{HOSTILE}", key=HOSTILE.replace(" (", "("), text=HOSTILE),
        Unit(unit="a b;$(x)", enabled=True),
    )
    pattern = change("p", Value(path=place.replace("a b", "*"), value=words, is_pattern=True))
    text = script(plan(change(HOSTILE, *steps), pattern))
    before = root.state()
    ran = root.run(text)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert root.text(place) == words + "\n"
    assert root.text(f"/etc{HOSTILE}") == plan(change(HOSTILE, *steps)).files[0].content
    assert root.path("/run/units/a b;$(x).enabled").exists()
    assert root.run(text, "--check").returncode == 0
    assert not root.path("/hit").exists()
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


@needs_root
@pytest.mark.parametrize("present", ["", "# mine\n"])
def test_a_file_has_the_mode_that_is_asked_for(root: Root, present: str) -> None:
    if present:
        root.put("/etc/secret.conf", present, 0o644)
    asked = OwnedFile(path="/etc/secret.conf", content="key = 1\n", mode=0o600)
    text = script(
        plan(change("/etc/secret.conf", FileLine(path="/etc/secret.conf", key="/etc/secret.conf", text="key = 1"), action=asked))
    )
    before = root.state()
    assert root.run(text).returncode == 0
    assert root.path("/etc/secret.conf").stat().st_mode & 0o7777 == 0o600
    assert root.run(text, "--undo").returncode == 0
    assert root.state() == before


def test_usage_and_who_may(tmp_path: Path) -> None:
    place = tmp_path / "tune.sh"
    place.write_text(script(plan()))
    for args, status in ((("--nonsense",), 2), (("--check", "x"), 2), (("--help",), 0), (("--check",), 0)):
        assert subprocess.run(["bash", str(place), *args], capture_output=True, check=False).returncode == status
    if os.geteuid() == 0:
        as_nobody = subprocess.run(["bash", "-s"], input=script(plan()), text=True, capture_output=True, user=65534, check=False)
        assert as_nobody.returncode == 2 and "needs root" in as_nobody.stderr
