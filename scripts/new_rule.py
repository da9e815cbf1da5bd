"""Make the files of a new rule: a stub of its function, its module's place in the family, and two overlays of the healthy host.

./run new-rule fan-speed-low hardware
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
RULES = REPO / "src/torchtune_sys/rules"
HOSTS = REPO / "tests/hosts"

STUB = '''"""TODO: what the rules of this module judge, in one line."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot


@rule(
    id="{id}",
    title="TODO: the defect, in one line",
    severity=Severity.ADVICE,
    fix=(Advice(text="TODO: what to do"),),
)
def {name}(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """TODO: what the defect is.

    Why it matters
    TODO: what it does to training.

    When to leave it
    TODO: where it is right as it is.

    References
    TODO: who says so.
    """
    # Unwrap facts with need(s.<family>), which ends the rule as unknown; raise NotApplicable where there is nothing to judge.
    yield Evidence(subject="TODO", seen="TODO", wanted="TODO", verdict=Verdict.PASS, source="TODO")
'''
SYSCTL_STUB = '''"""TODO: what the rules of this module judge, in one line."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Sysctl
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast
from torchtune_sys.rules.sysctl.policy import judged

_WANTED = AtLeast(0)  # TODO: AtLeast(1), AtMost(1), Exactly("0") or OneOf(("0", "2")), see model/target.py


@rule(
    id="{id}",
    title="TODO: the defect, in one line",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="TODO.key", target=_WANTED),),
)
def {name}(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """TODO: what the defect is.

    Why it matters
    TODO: what it does to training.

    When to leave it
    TODO: where it is right as it is.

    References
    TODO: who says so.
    """
    # Raise NotApplicable where the key does not matter on this host.
    yield judged(s, "TODO.key", _WANTED)
'''
OVERLAY = """{{
 "extends": "healthy.json",
 "{part}": {{
 }}
}}
"""


def families() -> list[str]:
    return sorted(path.parent.name for path in RULES.glob("*/__init__.py"))


def refusal(rule_id: str, family: str) -> str:
    """Return why these cannot be a new rule's id and family; empty where they can."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule_id) or not rule_id[0].isalpha():
        return f"{rule_id!r} is no id: two or more words of small letters and digits with hyphens, named for the defect (fan-speed-low)"
    if family not in families():
        return f"no family is called {family!r}; there are {', '.join(families())}"
    if any(f'id="{rule_id}"' in path.read_text() for path in RULES.rglob("*.py")):
        return f"there is a rule {rule_id} already: torchtune-sys explain {rule_id}"
    if (path := RULES / family / f"{rule_id.replace('-', '_')}.py").exists():
        return f"{path.relative_to(REPO)} exists already"
    return ""


def listed(text: str, family: str, module: str) -> str:
    """Return the text of the family's ``__init__.py`` with the module as the last of its RULES."""
    line = f"from torchtune_sys.rules.{family} import {module}\n"
    at = text.index("from torchtune_sys.")
    end = text.index(")", text.rindex("rules_of("))
    return text[:at] + line + text[at:end].rstrip().rstrip(",") + f", {module}" + text[end:]


def in_order(path: Path) -> None:
    """Sort the imports and format, where ruff is installed beside this Python, as ./run does it; ./run lint tells otherwise."""
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["check", "--select", "I", "--fix"], ["format"]) if ruff.exists() else ():
        subprocess.run([ruff, *arguments, "--quiet", "--no-cache", path], cwd=REPO, check=True)


def healthy_part(family: str) -> tuple[str, str]:
    """Return the file with the family's part of the healthy host, and what that begins with: its files, or answers of queries and NVML."""
    path = HOSTS / f"base-{family}.json"
    return (path.name, next(iter(json.loads(path.read_text())))) if path.exists() else ("base-*.json", "files")


def next_steps(rule_id: str, family: str) -> str:
    base, _part = healthy_part(family)
    steps = [
        "Write the function in place of each TODO. What a rule can read: src/torchtune_sys/model/facts/; what is lacking there is a"
        " new fact (docs/architecture.md).",
        f"""Put into the overlays what differs from the healthy host, under the names that it has in tests/hosts/{base} ("files",
   "answers", "env" …; a list is given whole): what makes the rule fail, what makes it unknown ({{"error": "denied"}} in place of a
   file's text or of an answer).""",
        f"./run test tests/rules/test_catalogue.py -k {rule_id}; its first error is the next step.",
        "./run test tests/rules/test_typical.py tests/rules/test_platforms.py: of ordinary machines it says nothing, or their lists expect it.",
        "./run docs, which writes docs/rules/, the table of what each rule reads and the Ansible role's variables; commit them with it.",
        'A line in CHANGELOG.md under "Unreleased".',
    ]
    if family == "sysctl":
        steps[1:1] = [
            "A new key: its path into KEYS in src/torchtune_sys/formats/sysctl_keys.py, a healthy value into"
            " tests/hosts/base-sysctl.json.",
            "Where the fix is AtLeast: the kernel's own default into src/torchtune_sys/knowledge/data/kernel_defaults.csv.",
            "Where the boot rules (lost at reboot, overridden) are to judge the key as well: its row in POLICIES in"
            " src/torchtune_sys/rules/sysctl/policy.py,\n   and the rule asks the row's function for its target.",
        ]
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run new-rule", description="Make the files of a new rule.")
    parser.add_argument("id", help="named for the defect: fan-speed-low")
    parser.add_argument("family", help=f"one of {', '.join(families())}")
    asked = parser.parse_args()
    if why := refusal(asked.id, asked.family):
        parser.error(why)
    name, package = asked.id.replace("-", "_"), RULES / asked.family / "__init__.py"
    text = listed(package.read_text(), asked.family, name)
    stub = SYSCTL_STUB if asked.family == "sysctl" else STUB
    made = {RULES / asked.family / f"{name}.py": stub.replace("{id}", asked.id).replace("{name}", name)}
    overlay = OVERLAY.format(part=healthy_part(asked.family)[1])
    made |= {HOSTS / f"{asked.id}.{verdict}.json": overlay for verdict in ("fail", "unknown")}
    for path, content in made.items():
        if not path.exists():
            path.write_text(content)
            print(f"{path.relative_to(REPO)}: made")
    package.write_text(text)
    in_order(package)
    print(f"{package.relative_to(REPO)}: lists it")
    print(f"Next:\n{next_steps(asked.id, asked.family)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
