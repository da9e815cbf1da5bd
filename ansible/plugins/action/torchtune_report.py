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

from ansible_collections.torchtune.sys.plugins.plugin_utils import fleet


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
                "fail": {"type": "bool", "default": True},
            }
        )[1]
        held = _Held((task_vars or {})["hostvars"], asked)
        names = asked["hosts"] or held.asked((task_vars or {}).get("ansible_play_hosts_all") or [])
        hosts = [fleet.host(str(name), *held.of(name)) for name in names]
        document = fleet.fleet(hosts, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        result.update(
            changed=False,
            msg=fleet.text(document),
            headline=fleet.headline(document),
            summary=document["summary"],
            _ansible_verbose_always=True,
        )
        if asked["directory"]:
            result.update(self._written(os.path.abspath(asked["directory"]), document))
        bad = [one["host"] for one in hosts if one["state"] in fleet.BAD]
        if asked["fail"] and bad:
            result.update(failed=True, not_judged=bad)
        return result

    def _written(self, folder: str, document: dict[str, t.Any]) -> dict[str, t.Any]:
        """The files of the report: written anew each time, and a change where more than the time differs."""
        files = {f"hosts/{_file_name(one['host'])}.json": _json(one) for one in document["hosts"]}
        files["fleet.json"] = _json(document)
        files["fleet.md"] = fleet.markdown(document)
        before = _without_time(os.path.join(folder, "fleet.json"))
        changed = before != json.loads(_json({**document, "time": ""}))
        if not self._task.check_mode:
            try:
                for name, text in files.items():
                    _write(os.path.join(folder, name), text)
            except OSError as error:
                raise AnsibleActionFail(f"the report could not be written: {error.filename}: {error.strerror}") from error
        return {"changed": changed, "markdown": os.path.join(folder, "fleet.md"), "json": os.path.join(folder, "fleet.json")}


class _Held:
    """What is registered of the hosts, as plain data."""

    def __init__(self, hostvars: t.Any, names: t.Mapping[str, t.Any]) -> None:
        self._hostvars = hostvars
        self._names = names

    def asked(self, play: t.Sequence[str]) -> list[str]:
        """The hosts of this play, if they were asked in it; else those of the inventory that were asked in an earlier one."""
        of_play = [str(name) for name in play]
        return of_play if any(map(self._was_asked, of_play)) else [name for name in self._hostvars if self._was_asked(name)]

    def of(self, name: str) -> tuple[t.Any, str, t.Any, str]:
        """Result of the check, what failed before it, result of the changes, what failed in them."""
        held = self._hostvars[name] if name in self._hostvars else {}
        result = held.get(self._names["result"], held.get("torchtune_sys_copied"))
        failure, change_failure = (str(held.get(key) or "") for key in (self._names["failure"], "torchtune_sys_change_failure"))
        return _plain(result), failure, _plain(held.get(self._names["applied"])), change_failure

    def _was_asked(self, name: str) -> bool:
        held = self._hostvars[name] if name in self._hostvars else {}
        return any(self._names[key] in held for key in ("result", "failure", "applied")) or "torchtune_sys_copied" in held


def _plain(value: t.Any) -> t.Any:
    return None if value is None else json.loads(json.dumps(value, default=str))


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
