# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Write one report about all hosts of the play, on the controller."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.torchtune.sys.plugins.plugin_utils import answers, differences, fleet, outdated


class ActionModule(ActionBase):
    """Runs on the controller alone: no host is asked."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        asked = self.validate_argument_spec(
            argument_spec={
                "directory": {"type": "path"},
                "hosts": {"type": "list", "elements": "str"},
                "result": {"type": "str", "default": "torchtune_sys_checked"},
                "failure": {"type": "str", "default": "torchtune_sys_failure"},
                "applied": {"type": "str", "default": "torchtune_sys_applied"},
                "preflight": {"type": "str", "default": "torchtune_sys_preflighted"},
                "fail": {"type": "bool", "default": True},
                "compare": {"type": "bool", "default": True},
                "tool": {"type": "path"},
            }
        )[1]
        held = _Held((task_vars or {})["hostvars"], asked)
        names = asked["hosts"] or held.asked((task_vars or {}).get("ansible_play_hosts_all") or [])
        hosts = [_host(str(name), *held.of(name)) for name in names]
        facts = {str(name): found for name in names if (found := held.facts(name)) is not None}
        said = _differences(facts, asked)
        document = fleet.fleet(hosts, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), said.get("document"))
        result.update(
            changed=False,
            msg=fleet.text(document, said.get("text", "")),
            headline=fleet.headline(document),
            summary=document["summary"],
            _ansible_verbose_always=True,
        )
        if asked["directory"]:
            folder = os.path.abspath(asked["directory"])
            result.update(self._written(folder, document, facts, said.get("markdown", "")))
            self._clean_up(folder, held.others(names), document, facts)
        reasons = fleet.reasons(hosts)
        result.update(reasons=reasons, not_judged=list(reasons), failed=bool(asked["fail"] and reasons))
        return result

    def _written(self, folder: str, document: dict[str, t.Any], facts: t.Mapping[str, t.Any], differs: str) -> dict[str, t.Any]:
        """The files of the report: written anew each time, and a change where more than the time differs."""
        files = {f"hosts/{_file_name(one['host'])}.json": _json(one) for one in document["hosts"]}
        files["fleet.json"] = _json(document)
        if any("preflight" in one for one in document["hosts"]):
            files["good_hosts.txt"] = "".join(f"{one['host']}\n" for one in document["hosts"] if one["state"] not in fleet.BAD)
        files["fleet.md"] = fleet.markdown(document, differs)
        files.update({f"facts/{_file_name(name)}.json": differences.line(name, found) for name, found in facts.items()})
        before = _without_time(os.path.join(folder, "fleet.json"))
        changed = before != json.loads(_json({**document, "time": ""}))
        if not self._task.check_mode:
            try:
                for name, text in files.items():
                    _write(os.path.join(folder, name), text)
            except OSError as error:
                raise AnsibleActionFail(f"the report could not be written: {error.filename}: {error.strerror}") from error
        return {"changed": changed, "markdown": os.path.join(folder, "fleet.md"), "json": os.path.join(folder, "fleet.json")}

    def _clean_up(self, folder: str, others: list[str], document: dict[str, t.Any], facts: t.Mapping[str, t.Any]) -> None:
        """Remove what an earlier report says of hosts that are gone, and earlier facts of hosts that returned none now."""
        if self._task.check_mode:
            return
        with_facts = [*others, *facts] if facts else [*others, *(one["host"] for one in document["hosts"])]
        current = {f"facts/{_file_name(name)}.json" for name in with_facts}
        current |= {f"hosts/{_file_name(name)}.json" for name in (*others, *(one["host"] for one in document["hosts"]))}
        for path in outdated.outdated(folder, current):
            with contextlib.suppress(OSError):
                os.unlink(path)


class _Held:
    """What is registered of the hosts, as plain data."""

    def __init__(self, hostvars: t.Any, names: t.Mapping[str, t.Any]) -> None:
        self._hostvars = hostvars
        self._names = names

    def asked(self, play: t.Sequence[str]) -> list[str]:
        """The hosts of this play, if they were asked in it; else those of the inventory that were asked in an earlier one."""
        of_play = [str(name) for name in play]
        return of_play if any(map(self._was_asked, of_play)) else [name for name in self._hostvars if self._was_asked(name)]

    def others(self, names: t.Sequence[str]) -> list[str]:
        """The hosts of the inventory that this report is not about: what an earlier one says of them stays."""
        return [str(name) for name in self._hostvars if name not in names]

    def of(self, name: str) -> tuple[t.Any, str, t.Any, str, t.Any]:
        """Result of the check, what failed before it, result of the changes, what failed in them, result of the pre-flight."""
        held = self._hostvars[name] if name in self._hostvars else {}
        result = held.get(self._names["result"], held.get("torchtune_sys_copied"))
        failure, change_failure = (str(held.get(key) or "") for key in (self._names["failure"], "torchtune_sys_change_failure"))
        return _plain(result), failure, _plain(held.get(self._names["applied"])), change_failure, self._preflight(held)

    def facts(self, name: str) -> t.Any:
        """What the check's result holds for compare; None without it."""
        held = self._hostvars[name] if name in self._hostvars else {}
        result = held.get(self._names["result"])
        found = result.get("facts") if isinstance(result, t.Mapping) else None
        return _plain(found) if isinstance(found, t.Mapping) else None

    def _preflight(self, held: t.Any) -> t.Any:
        """Its verdict; else why it did not begin, or did not end. None where it was not asked for."""
        found = [_plain(held.get(name)) for name in (self._names["preflight"], "torchtune_sys_preflight_begun")]
        told = [one for one in found if one and not one.get("skipped") and ("msg" in one or "verdict" in one)]
        return next(iter(told), None)

    def _was_asked(self, name: str) -> bool:
        held = self._hostvars[name] if name in self._hostvars else {}
        asked = any(self._names[key] in held for key in ("result", "failure", "applied", "preflight"))
        return asked or "torchtune_sys_copied" in held


def _host(name: str, result: t.Any, failure: str, applied: t.Any, change_failure: str, preflight: t.Any) -> dict[str, t.Any]:
    """What one host answered; an answer that is none of a module's costs no other host its report."""
    wrong = answers.misshapen(result, applied, preflight)
    if wrong:
        return fleet.host(name, None, f"it answered otherwise than the module does ({wrong})")
    return fleet.host(name, result, failure, applied, change_failure, preflight)


def _differences(facts: t.Mapping[str, t.Any], asked: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What compare says of these hosts; nothing where it is not wanted, or of fewer than two."""
    if not asked["compare"] or len(facts) < 2:
        return {}
    try:
        return differences.between(facts, differences.tool(asked["tool"]))
    except differences.Unsaid as why:
        return {"document": {"why": str(why)}}


def _plain(value: t.Any) -> t.Any:
    """Nothing but JSON. What is no such thing, or nested too deep, is an answer that failed."""
    if value is None:
        return None
    try:
        return json.loads(json.dumps(value, default=str), parse_constant=str)
    except (ValueError, TypeError, RecursionError):
        return {"msg": "it answered what cannot be read as JSON"}


def _json(value: t.Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _without_time(path: str) -> t.Any:
    try:
        with open(path, encoding="utf-8") as file:
            return {**json.load(file), "time": ""}
    except (OSError, ValueError, TypeError):
        return None


def _write(path: str, text: str) -> None:
    """Whole or not at all. Raises OSError."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _file_name(host: str) -> str:
    """A host's name as a file's: nothing in it leads out of the folder."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", host)
    return plain if plain.strip(".") else "_"
