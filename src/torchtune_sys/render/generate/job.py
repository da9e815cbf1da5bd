"""A job's environment as a shell, systemd, Slurm, Docker and Kubernetes read it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator

import msgspec

from torchtune_sys.errors import UserError
from torchtune_sys.model.job import JobVariable
from torchtune_sys.model.steering import escaped
from torchtune_sys.render.layout import clean

Variables = Iterable[JobVariable]


def _comment(variable: JobVariable) -> str:
    choice = "" if variable.sure else "to be chosen: "
    return f"# {choice}{clean(variable.reason)} [{clean(variable.source)}]"


def _lines(variables: Variables, form: Callable[[JobVariable], str]) -> str:
    rows = []
    for variable in variables:
        rows += [
            _comment(variable),
            form(variable) if variable.sure else "".join(f"# {row}" for row in form(variable).splitlines(True)),
        ]
    return "\n".join(rows) + "\n"


def shell(variables: Variables) -> str:
    """Return lines for ``source`` in any POSIX shell."""
    return _lines(variables, _export)


def _export(variable: JobVariable) -> str:
    return f"unset {variable.name}" if variable.value is None else f"export {variable.name}={shlex.quote(variable.value)}"


def systemd(variables: Variables) -> str:
    """Return the lines for ``[Service]``."""
    return "[Service]\n" + _lines(variables, _unit_line)


def _unit_line(variable: JobVariable) -> str:
    if variable.value is None:
        return f"UnsetEnvironment={variable.name}"
    return f"Environment={systemd_word(f'{variable.name}={variable.value}')}"


def systemd_word(text: str) -> str:
    r"""Return one word of a unit file: C escapes within quotes, and a doubled percent sign (systemd.unit(5), systemd.syntax(7)).

    >>> systemd_word('A=b "c" 5%')
    '"A=b \\"c\\" 5%%"'
    """
    if any((sign < " " and sign not in "\t\n") or sign == "\x7f" for sign in text):  # systemd ignores the whole assignment then
        raise UserError(f"{clean(text)}: systemd takes no control characters", "take --format shell")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def slurm(variables: Variables) -> str:
    """Return a TaskProlog: what it prints becomes the task's environment (slurm.conf(5), TaskProlog)."""
    return "#!/bin/sh\n" + _lines(variables, _task_line)


def _task_line(variable: JobVariable) -> str:
    words = f"unset {variable.name}" if variable.value is None else f"export {variable.name}={_one_line(variable)}"
    return f"printf '%s\\n' {shlex.quote(words)}"


def docker(variables: Variables) -> str:
    """Return an ``--env-file``: lines without any quoting."""
    return _lines(_in_image(variables), lambda variable: _left_out(variable) or f"{variable.name}={_one_line(variable)}")


def _left_out(variable: JobVariable) -> str:
    """Return what is said of variables that are left out: a container does not inherit the session's; an empty value would mean something (it hides every GPU)."""
    return f"# do not pass {variable.name} on" if variable.value is None else ""


def _one_line(variable: JobVariable) -> str:
    value = variable.value or ""
    if "\n" in value or "\r" in value:  # Docker takes a carriage return at the end for a part of the line's
        raise UserError(f"{variable.name}: its value has several lines, which this form cannot hold", "take --format shell")
    return value


def kubernetes(variables: Variables) -> str:
    """Return the ``env`` of a container."""
    return "env:\n" + _lines(_in_pod(variables), _entry)


def _in_pod(variables: Variables) -> Iterator[JobVariable]:
    """Yield what holds in a pod, which has an interface of its own (eth0), and the cores that its limits give: what was seen here is the node's."""
    for variable in _in_image(variables):
        if variable.name.endswith("_SOCKET_IFNAME") and variable.value is not None:
            reason = f"{variable.reason}; of the node, so only for a pod with hostNetwork: true"
            variable = msgspec.structs.replace(variable, sure=False, reason=reason)
        elif variable.name in ("OMP_NUM_THREADS", "NCCL_IB_HCA") and variable.value is not None:
            what = "cores" if variable.name == "OMP_NUM_THREADS" else "devices"
            reason = f"{variable.reason}, on the node; count those that the pod's limits give it"
            variable = msgspec.structs.replace(variable, sure=False, reason=reason.replace("those", f"the {what}"))
        yield variable


def _in_image(variables: Variables) -> Iterator[JobVariable]:
    """Yield what holds in an image: a library of the host is none of the image's: the loader would complain in every process."""
    for variable in variables:
        if variable.name == "LD_PRELOAD" and variable.value is not None:
            reason = f"{variable.reason}; only where the image has the library, by its path there"
            variable = msgspec.structs.replace(variable, sure=False, reason=reason)
        yield variable


def _entry(variable: JobVariable) -> str:
    """Kubernetes replaces ``$(NAME)`` in values; a doubled dollar sign is one (Container.env in the API reference)."""
    return _left_out(variable) or f"- name: {variable.name}\n  value: {yaml_word((variable.value or '').replace('$', '$$'))}"


def yaml_word(text: str) -> str:
    r"""Return a double-quoted scalar (YAML 1.2, 5.7), in which all that a parser might refuse or fold is an escape.

    >>> yaml_word('a "b"\n')
    '"a \\"b\\"\\n"'
    """
    plain = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return f'"{"".join(plain.get(sign) or (sign if sign.isprintable() else escaped(sign)) for sign in text)}"'


FORMS: dict[str, Callable[[Variables], str]] = {
    "shell": shell,
    "systemd": systemd,
    "slurm": slurm,
    "docker": docker,
    "kubernetes": kubernetes,
}
