"""Word click's usage errors like all other errors: what was seen, and what to do."""

from __future__ import annotations

import re
from shlex import quote

import click

from torchtune_sys import PROGRAM
from torchtune_sys.cli.help import HELP_ALL
from torchtune_sys.errors import nearest

_PLAINER = (
    ("not a valid integer range", "not a whole number"),
    ("not a valid integer", "not a whole number"),
    ("not a valid float range", "not a number"),
    ("not a valid float", "not a number"),
)
"""click's own names for types, and plainer words for them."""
_DEVICES = {"gpu": "cuda", "nvidia": "cuda"}
"""What people call a device, and torch's name for it."""


def worded(error: click.ClickException) -> tuple[str, str]:
    """Return what click says, as one sentence without its full stop, and what helps.

    >>> worded(click.UsageError("No such option '--slect'. Did you mean --select?"))
    ("no such option '--slect'", 'did you mean --select? All options: torchtune-sys --help')
    >>> worded(click.BadParameter("2 is odd.", param_hint="--ranks"))
    ('--ranks: 2 is odd', 'how it is used: torchtune-sys --help')
    """
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    if isinstance(error, click.NoSuchOption) and context is not None:
        return f"no such option {error.option_name}", _instead(error, context)
    message = re.sub(r"^Invalid value for (?:'([^']*)'|(\S+)): ", _parameter, " ".join(error.format_message().split()))
    for clumsy, plain in _PLAINER:
        message = message.replace(clumsy, plain)
    message, _, choices = message.partition(". Choose from: ")
    seen, _, hint = message.partition(" Did you mean ")
    if choices:
        return _begun(seen), f"choose from: {choices}"
    seen = _begun(seen.rstrip().removesuffix(".").removesuffix(";"))
    if (extra := re.match(r"[^(]{0,60}extra arguments? \((.+)\)", seen)) and context is not None:
        return seen, _for_extra(extra[1], context)
    wrong = re.search(r"'?([^' ]{1,80})'? is (?:not one|none) of (.+)", seen)
    if wrong and (close := nearest(_DEVICES.get(wrong[1], wrong[1]), re.findall(r"[^ ,;']+", wrong[2]), "")):
        return seen, f"{close} How it is used: {path} --help"
    group = context is not None and isinstance(context.command, click.Group)
    if seen == "missing command" and context is not None and isinstance(context.command, click.Group):
        return seen, f"choose from: {', '.join(context.command.list_commands(context))}; what each prints: {path} --help"
    if hint:
        return seen, f"did you mean {hint} All {'commands' if group and 'command' in seen else 'options'}: {path} --help"
    return seen, f"how it is used: {path} --help"


def _for_extra(words: str, context: click.Context) -> str:
    """Return which option takes what was given without one: the words of a search, a rule's id, a host's file."""
    path, options = context.command_path, _options(context)
    plain = re.fullmatch(r"[\w *?-]+", words) is not None
    if "--search" in options and plain:
        return f"rules by their words: {path} --search {quote(words)}"
    if "--select" in options and plain and (names := words.split()) and _are_rules(names):
        return f"rules are chosen by --select: {path} --select {quote(','.join(names))}"
    if "--from" in options:
        return f"one host at a time, named by --from: {path} --from FILE (several: torchtune-sys compare FILE …)"
    return f"how it is used: {path} --help"


def _are_rules(names: list[str]) -> bool:
    from torchtune_sys.rules import by_id

    known = by_id()
    return all(name in known or any(rule.family == name for rule in known.values()) for name in names)


def _instead(error: click.NoSuchOption, context: click.Context) -> str:
    """Return where the option belongs, or the nearest ones and how all are shown."""
    path, root = context.command_path, context.find_root()
    if context is not root and error.option_name in _options(root):
        return f"it stands before the command: {root.command_path} {error.option_name} {path.partition(' ')[2]}"
    if error.option_name == "--from" and path.endswith((" apply", " undo")):
        return f"only this host is changed; for another: {root.command_path} plan --from FILE, or generate script --from FILE"
    all_ = HELP_ALL if HELP_ALL in _options(context) else "--help"
    meant = _meant(error, context)
    return f"{f'{meant} All' if meant else 'all'} options: {path} {all_}"


def _options(context: click.Context) -> set[str]:
    return {name for param in context.command.get_params(context) for name in param.opts}


def _meant(error: click.NoSuchOption, context: click.Context) -> str:
    """Return the nearest options; the option whose value was given as one (``--json``)."""
    word = error.option_name.lstrip("-")
    params = context.command.get_params(context)
    for param in params:
        if isinstance(param.type, click.Choice) and word in param.type.choices and isinstance(param, click.Option):
            return f"did you mean {param.opts[0]} {word}?"
    known = {name.lstrip("-"): name for param in params for name in param.opts if name.startswith("--")}
    hint = nearest(word, known, "", 2)
    return re.sub(r"(?<=mean |. or )[^ ?]+", lambda found: known.get(found[0], found[0]), hint)


def _parameter(found: re.Match[str]) -> str:
    return f"{(found[1] or found[2]).split(' / ')[-1].strip('[]')}: "


def _begun(text: str) -> str:
    """Return the text without its sentence capital; names keep theirs."""
    return text[0].lower() + text[1:] if re.match("[A-Z][a-z]+ ", text) else text
