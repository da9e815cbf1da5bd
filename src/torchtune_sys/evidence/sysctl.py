"""Running kernel settings in what ``sysctl -a``, or ``sysctl KEY``, prints.

A file of sysctl.d looks alike and tells what somebody wishes, so a text counts as output only where it names a key that nobody can set, or the call.
"""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.formats.sysctl_keys import KEYS, dotted, interface_keys
from torchtune_sys.model.facts.sysctl import Setting, SysctlFacts
from torchtune_sys.model.patterns import pattern

_LINE = pattern(r"^[ \t>]{0,8}((?:abi|crypto|debug|dev|fs|kernel|net|user|vm)\.[\w./*-]{2,120}) = ?([^\n]{0,200})$", re.MULTILINE)
_OUTPUT = pattern(
    r"^[ \t>]{0,8}(?:(?:fs\.(?:file-nr|inode-nr|inode-state|dentry-state)|kernel\.(?:osrelease|ostype|version|ns_last_pid|random\.\w{2,30})) ?="
    r"|[^\n#=]{0,80}[$#%>] ?(?:sudo )?(?:/\w{1,10}){0,3}/?sysctl (?!(?:-w|-p|--system|--load|--write)\b))",
    re.MULTILINE,
)
_CONF = "net.ipv4.conf."


def running(text: str) -> dict[str, str]:
    """Return the values by key; empty where the text is not output of sysctl.

    >>> running("fs.file-nr = 1705\\t0\\t2466183\\nvm.swappiness = 60\\n")["vm.swappiness"]
    '60'
    >>> running("$ sysctl net.ipv4.tcp_rmem\\nnet.ipv4.tcp_rmem = 4096\\t131072\\t6291456\\n")
    {'net.ipv4.tcp_rmem': '4096 131072 6291456'}
    >>> running("# /etc/sysctl.d/90-training.conf\\nvm.swappiness = 10\\n")
    {}
    """
    if ("sysctl " not in text and " = " not in text) or not _OUTPUT.search(text):
        return {}
    values = {found[1]: " ".join(found[2].split()) for found in _LINE.finditer(text)}
    return {key: value for key, value in values.items() if value}  # nothing is no value on a host either


def sysctl_facts(text: str) -> SysctlFacts | None:
    """Return the settings that rules ask for, those that the text lacks not recorded; None where it is not output of sysctl.

    >>> facts = sysctl_facts("kernel.ostype = Linux\\nvm.overcommit_memory = 2\\nnet.ipv4.conf.eth0.rp_filter = 1\\nnet.ipv4.conf.ib0.rp_filter = 2\\n")
    >>> [facts.settings[key].running for key in ("vm.overcommit_memory", "net.ipv4.conf.ib0.rp_filter")]
    ['2', '2']
    >>> facts.settings["vm.swappiness"].running.why
    <Why.NOT_RECORDED: 'not-recorded'>
    """
    values = running(text)
    if not values:
        return None
    names = dict.fromkeys(key[len(_CONF) :].rpartition(".")[0].replace("/", ".") for key in values if key.startswith(_CONF))
    wanted = {dotted(path) for path in (*KEYS, *interface_keys(names))}
    return partly(
        SysctlFacts,
        settings={key: partly(Setting, key=key, running=values.get(key, missing()), assignments=()) for key in sorted(wanted)},
    )
