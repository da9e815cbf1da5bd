"""The modules' options that are the command line's: their flags, argument specs and documentation."""

from __future__ import annotations

import json

from torchtune_sys.gen.collection import options as options_
from torchtune_sys.gen.collection import yaml
from torchtune_sys.gen.collection.options import Option
from torchtune_sys.gen.collection.yaml import Node
from torchtune_sys.host.secrets.words import HINTS

_HEAD = '''# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""{says}"""

from __future__ import absolute_import, division, print_function

__metaclass__ = type
'''
_TABLES = {
    "WORKLOAD": ("check", options_.WORKLOAD),
    "SELECTION": ("check", options_.SELECTION),
    "SMOKING": ("smoke", options_.SMOKING),
    "INSTALLING": ("install", options_.INSTALLING),
}
RULES = "Rules by id, each V(true), V(false) (it does not run) or a dictionary of its parameters, as C(torchtune-sys explain RULE) names them."
_TOOL: dict[str, Node] = {
    "path": {
        "description": "Where the tool lies on the host; a name is looked for in PATH, C(/usr/local/bin) and C(/opt/torchtune-sys/bin).",
        "type": "path",
        "default": "torchtune-sys",
    },
    "interpreter": {"description": "Start the tool by this Python, 3.10 or newer.", "type": "path"},
}


def options() -> str:
    """Return module_utils/options.py: for each table the flags by name, and the argument spec."""
    parts = [_HEAD.format(says="Options of the command line: their flags, and how Ansible checks them.")]
    for name, (command, names) in _TABLES.items():
        found = list(options_.options(command, names))
        parts.append(f"\n{name} = {{\n{''.join(_flag(option) for option in found)}}}\n")
        parts.append(f"{name}_SPEC = {{\n{''.join(_spec(option) for option in found)}}}\n")
    return "".join(parts)


def signs() -> str:
    """Return module_utils/signs.py: what stands in a line that may hold a secret, as the tool's own filter has it."""
    quoted = (f"'{sign}'" if '"' in sign else json.dumps(sign) for sign in dict.fromkeys(HINTS))
    rows = "".join(f"    {sign},\n" for sign in quoted)
    return f"{_HEAD.format(says='A line without any of these, in lower case, holds no secret that has a name or a shape.')}\nSIGNS = (\n{rows})\n"


def _flag(option: Option) -> str:
    return f"    {json.dumps(option.name)}: {json.dumps(option.flags[0])},\n"


def _spec(option: Option) -> str:
    words = [f'type="{option.type}"']
    words += [f'elements="{option.elements}"'] if option.elements else []
    words += [f"choices={json.dumps(list(option.choices))}"] if option.choices else []
    words += ["default=False"] if option.type == "bool" else []
    return f"    {json.dumps(option.name)}: dict({', '.join(words)}),\n"


def fragments() -> dict[str, str]:
    """Return the documentation fragments by name."""
    judging = {**_documented("WORKLOAD"), **_documented("SELECTION"), "rules": {"description": RULES, "type": "dict"}}
    return {
        "tool": _fragment("Where the tool is, and how it is started.", _TOOL),
        "judging": _fragment("What the host is judged by.", judging),
        "smoking": _fragment(
            "What is trained.",
            {**_documented("SMOKING"), **{o.name: o.documented() for o in options_.options("smoke", ("level",))}},
        ),
        "installing": _fragment("What is to be installed.", _documented("INSTALLING")),
    }


def _documented(table: str) -> dict[str, Node]:
    command, names = _TABLES[table]
    return {option.name: option.documented() for option in options_.options(command, names)}


def _fragment(says: str, found: dict[str, Node]) -> str:
    text = yaml.dump({"options": found})
    return f'{_HEAD.format(says=says)}\n\nclass ModuleDocFragment(object):\n    DOCUMENTATION = r"""\n{text}"""\n'
