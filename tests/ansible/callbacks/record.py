"""Write what became of each task on each host as a line of JSON into the file that $ANSIBLE_RECORD names."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record
type: aggregate
short_description: results as lines of JSON
description: For tests.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write("ignored" if ignore_errors else "failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write("unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._write("skipped", result)

    def _write(self, state: str, result: Any) -> None:
        task = result._task
        line = {
            "host": result._host.get_name(),
            "task": task.get_name(),
            "action": task.action,
            "state": state,
            "result": json.loads(json.dumps(result._result, default=str)),
        }
        with open(os.environ["ANSIBLE_RECORD"], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
