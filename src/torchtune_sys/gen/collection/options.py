"""Options of the command line as options of Ansible: name, type, choices and help come from the command itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator

import click
import msgspec

from torchtune_sys.gen.collection.yaml import Node

COMMANDS = {
    "check": "torchtune_sys.cli.commands.check",
    "smoke": "torchtune_sys.cli.commands.smoke",
    "install": "torchtune_sys.cli.commands.generate.install",
}
WORKLOAD = ("python", "live", "nproc_per_node", "nnodes", "threads", "workers", "data", "checkpoints", "timeout")
SELECTION = ("select", "ignore", "profile", "config")
SMOKING = ("python", "nproc_per_node", "stages", "device", "backend", "scratch", "timeout", "no_proof")
INSTALLING = ("python", "torch", "cpu", "venv", "driver_branch", "with")
_PATHS = ("python", "data", "checkpoints", "config", "scratch", "venv")


class Option(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """As Ansible writes it: ``nproc_per_node``."""
    flags: tuple[str, ...]
    """One; several where the option chooses between flags (``--quick``, ``--thorough``)."""
    type: str
    doc: str
    elements: str = ""
    choices: tuple[str, ...] = ()

    def documented(self) -> dict[str, Node]:
        """Return the option as DOCUMENTATION and argument specs have it."""
        found = described(self.doc, self.type, self.elements, self.choices)
        if self.type == "bool":
            found["default"] = False
        return found


def described(doc: str, type_: str, elements: str, choices: tuple[str, ...]) -> dict[str, Node]:
    """Return an option or variable as DOCUMENTATION and argument specs have it, without its default."""
    of_values = {"elements": elements, "choices": choices}
    return {"description": doc, "type": type_, **{key: value for key, value in of_values.items() if value}}


def options(command: str, names: Iterable[str]) -> Iterator[Option]:
    """Yield the options of a command by their Ansible names. Raises KeyError for one that the command has not."""
    known = {option.name: option for option in _all(command)}
    yield from (known[name] for name in names)


def _all(command: str) -> Iterator[Option]:
    levels: list[click.Option] = []
    for param in importlib.import_module(COMMANDS[command]).command.params:
        if isinstance(param, click.Option) and param.name == "level":
            levels.append(param)
        elif isinstance(param, click.Option):
            yield _option(param)
    if levels:
        choices = tuple(str(level.flag_value) for level in levels)
        doc = " ".join(f"V({level.flag_value}): {level.help}" for level in levels)
        flags = tuple(level.opts[0] for level in levels)
        yield Option(name="level", flags=flags, type="str", doc=doc, choices=choices)


def _option(param: click.Option) -> Option:
    flag = max(param.opts, key=len)
    name = flag.removeprefix("--").replace("-", "_")
    kind = _type(param, name)
    choices = tuple(str(choice) for choice in param.type.choices) if isinstance(param.type, click.Choice) else ()
    doc = (param.help or "").strip()
    if param.multiple:
        doc = doc.replace("; may be repeated", "").replace(", separated by commas", "")
        return Option(name=name, flags=(flag,), type="list", elements=kind, choices=choices, doc=doc)
    return Option(name=name, flags=(flag,), type=kind, choices=choices, doc=doc or f"As C({flag}).")


def _type(param: click.Option, name: str) -> str:
    if param.is_flag:
        return "bool"
    if isinstance(param.type, click.types.IntParamType):
        return "int"
    if isinstance(param.type, click.types.FloatParamType):
        return "float"
    return "path" if name in _PATHS else "str"
