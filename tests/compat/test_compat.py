"""What an earlier commit wrote on a host is undone, read and judged by today's code. ``make.py`` made the files, for real.

A folder for each commit that is kept. A verdict may change only where ``CHANGED`` says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stage import NEEDS, staged

import warm
from torchtune_sys.smoke import proof

HERE = Path(__file__).parent
KEPT = [folder.name for folder in sorted(HERE.iterdir()) if (folder / "verdicts.json").is_file()]
CHANGED: dict[str, str] = {}
"""Rule → why its verdict on the recording is another one today, or why it is gone."""
OURS = "/etc/sysctl.d/99-torchtune-sys.conf"
BY_HAND = "# by hand, no newline at the end\nvm.max_map_count = 4000"
LAY = f"""
rm -f /etc/sysctl.d/*torchtune*
echo 6d1a1f0e-0000-4000-8000-000000000001 > "$STAGE/boot"; mount --bind "$STAGE/boot" /proc/sys/kernel/random/boot_id
echo 65530 > /proc/sys/vm/max_map_count; echo 4194304 > /proc/sys/kernel/pid_max
lay() {{ cp "$1" {OURS}; chmod 644 {OURS}; install -m 600 "$2" /var/lib/torchtune-sys/0001.journal; }}
state() {{ stat -c '%a %u:%g' {OURS}; cat {OURS}; echo; cat /proc/sys/vm/max_map_count /proc/sys/kernel/pid_max; }}
"""
BEFORE = f"640 0:0\n{BY_HAND}\n3000\n2000\n"
EVERY_STEP = """
import sys
from pathlib import Path
import crash_machine as machine, crash_run
machine.lay(Path(sys.argv[1]))
machine.set_up()
before = machine.fingerprint()
for change in crash_run.CHANGES:
    for step in change.steps:
        if isinstance(step, crash_run.Value):
            Path(step.path).write_text(step.value + "\\n")
for file in crash_run.FILES:
    Path(file.path).parent.mkdir(parents=True, exist_ok=True)
    Path(file.path).write_text(file.content)
Path(machine.FLAG).write_text("")
Path("/var/lib/torchtune-sys/0001.journal").write_bytes(Path(sys.argv[2]).read_bytes())
changed = {key for key in before if machine.fingerprint().get(key) != before[key]}
assert len(changed) == 5, changed
assert crash_run.main("undo") == 0
now = machine.fingerprint()
print("not as it was:", {key for key in {*before, *now} if before.get(key) != now.get(key)})
"""


@pytest.mark.parametrize("commit", KEPT)
class TestJournals:
    pytestmark = NEEDS

    def test_an_applied_run_is_listed_and_undone(self, commit: str, tmp_path: Path) -> None:
        kept = HERE / commit
        said = staged(
            tmp_path,
            f'{LAY} lay "{kept / OURS.rpartition("/")[2]}" "{kept / "0001.journal"}"\ntt history; tt undo --yes; state; tt history',
        )
        assert "vm.max_map_count" in said and "Run 1 undone: everything is as it was" in said
        assert f"rc 0\n{BEFORE}" in said
        assert said.count("rc 0") == 3

    def test_what_somebody_changed_since_is_left(self, commit: str, tmp_path: Path) -> None:
        kept = HERE / commit
        script = f'lay "{kept / OURS.rpartition("/")[2]}" "{kept / "0001.journal"}"\necho 77777 > /proc/sys/vm/max_map_count'
        said = staged(tmp_path, f"{LAY} {script}\ntt undo --yes; state")
        assert f"640 0:0\n{BY_HAND}\n77777\n2000\n" in said and "rc 1" in said

    def test_a_killed_run_is_undone(self, commit: str, tmp_path: Path) -> None:
        """It was killed when both values were written, and the file was not."""
        (tmp_path / "by-hand").write_text(BY_HAND)
        script = f'lay "{tmp_path / "by-hand"}" "{HERE / commit / "killed.journal"}"; chmod 640 {OURS}'
        said = staged(tmp_path, f"{LAY} {script}\ntt history; tt undo --yes; state")
        assert "interrupted" in said and f"rc 0\n{BEFORE}" in said

    def test_every_kind_of_step_is_undone(self, commit: str, tmp_path: Path) -> None:
        path = os.pathsep.join((str(HERE.parent), str(HERE.parent / "apply")))
        done = subprocess.run(
            (
                *("unshare", "--mount", "--net", "--propagation", "private", sys.executable, "-c", EVERY_STEP),
                *(str(tmp_path), str(HERE / commit / "every-step.journal")),
            ),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.stdout == "not as it was: set()\n", done.stderr


@pytest.mark.parametrize("commit", KEPT)
@pytest.mark.parametrize("name", ["plain", "configured"])
def test_a_recording_is_judged_as_it_was(commit: str, name: str) -> None:
    """With a configuration file of that commit, too: its selections, parameters and exit status."""
    kept = HERE / commit
    wanted = json.loads((kept / "verdicts.json").read_text())[name]
    options = ["--config", str(kept / "config.toml")] if name == "configured" else []
    argv = [*warm.PROGRAM, "check", "--from", str(kept / "recording.json"), "--format", "json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert not done.stderr
    now = {result["rule"]: result["verdict"] for result in json.loads(done.stdout)["results"]}
    assert {rule: now.get(rule, "gone") for rule in wanted["rules"] if rule not in CHANGED} == {
        rule: verdict for rule, verdict in wanted["rules"].items() if rule not in CHANGED
    }
    assert done.returncode == wanted["status"]


@pytest.mark.parametrize("commit", KEPT)
def test_the_configuration_of_that_commit_changed_something(commit: str) -> None:
    wanted = json.loads((HERE / commit / "verdicts.json").read_text())
    plain, configured = wanted["plain"]["rules"], wanted["configured"]["rules"]
    assert plain.keys() - configured.keys()
    assert any(plain[rule] != verdict for rule, verdict in configured.items())


@pytest.mark.parametrize("commit", KEPT)
def test_a_proof_is_read_and_stands(commit: str) -> None:
    text = (HERE / commit / "proof.json").read_text()
    found = proof.parse(text)
    assert found is not None and len(found.runs) == 2
    last = found.runs[-1]
    host = {name: value for name, value in last.fingerprint.items() if name not in ("ranks", "level")}
    assert "day" in proof.standing(found, host, last.epoch_s + 3 * 86400)
    assert "kernel" in proof.standing(found, {**host, "kernel": "9.9"}, last.epoch_s + 60)
    assert proof.parse(text.replace(f'"ranks": "{last.fingerprint["ranks"]}"', '"ranks": "9"')) is None
