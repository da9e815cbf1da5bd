"""Lines of the fabric manager's log, of its journal and of ``systemctl status``. Pure; takes any text."""

from __future__ import annotations

import re

from torchtune_sys.model.patterns import pattern


def parse_fabric_manager_log(text: str) -> str:
    """Return the version at the last start in the log; ``""`` if none is logged.

    >>> parse_fabric_manager_log("[Feb 27 2025 15:04:30] [INFO] [tid 1803] Fabric Manager version is : 550.163.01 with build time: Apr  8 2025\\n")
    '550.163.01'
    """
    _, found, rest = text.rpartition("Fabric Manager version is")
    words = rest.replace(":", " ").split()
    return words[0] if found and words and words[0][0].isdigit() else ""


_STARTED = (
    "uccessfully configured all the available",
    'Started "Nvidia Fabric Manager"',
    "Started nvidia-fabricmanager.service",
    "Started NVIDIA fabric manager service",
)
_MISMATCH = pattern(
    r"fabric manager NVIDIA GPU driver interface version\s{1,20}([0-9][0-9.]{2,16}[0-9])\s{1,20}do(?:es)?n't match with driver version\s{1,20}"
    r"([0-9][0-9.]{2,16}[0-9])"
)
_ABORTED = pattern(r"detected number of NVSwitches don't match with any supported system topology")
_NOTHING = pattern(
    r"request to query NVSwitch device information from NVSwitch driver failed with error:\s?WARNING Nothing to do"
)


def runs(text: str) -> bool:
    """Return whether it has been at work: a start is told of, or that it answers the GPUs' driver.

    >>> runs("[Feb 25 2025 14:01:18] [INFO] [tid 1808] multicast group 0 is allocated.")
    True
    """
    return _last_start(text) >= 0 or ("] [tid " in text and ("inband message" in text or "multicast group" in text))


def versions_apart(text: str) -> tuple[str, str]:
    """Return the fabric manager's version and the driver's where the last start failed over them; both ``""`` otherwise.

    >>> versions_apart("fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver version 550.120. Please update")
    ('550.127.05', '550.120')
    """
    found = _last(_MISMATCH, text)
    return (found[1], found[2]) if found is not None and found.start() > _last_start(text) else ("", "")


def no_switch_found(text: str) -> bool:
    """Return whether the last start failed since the driver shows no NVSwitch: there is none, or (since B200) no subnet manager of its own runs."""
    found = _last(_NOTHING, text)
    return found is not None and found.start() > _last_start(text)


def failure(text: str) -> str:
    """Return why the last start failed, where the log tells; ``""`` if it does not, or a later start went well.

    >>> failure("[ERROR] [tid 9] detected number of NVSwitches don't match with any supported system topology, aborting fabric manager")
    'the number of NVSwitches fits no known board'
    """
    ours, drivers = versions_apart(text)
    if ours:
        return f"version {ours} does not start with driver {drivers}"
    found = _last(_ABORTED, text)
    return "the number of NVSwitches fits no known board" if found is not None and found.start() > _last_start(text) else ""


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=re.Match.start, default=None)


def _last_start(text: str) -> int:
    return max(text.rfind(words) for words in _STARTED)
