"""What to install as a bash script that a person can read from top to bottom: each step below its reason and its source."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys import __version__
from torchtune_sys.model.install import (
    Installation,
    InstallCommand,
    InstallFile,
    InstallRefused,
    InstallStep,
    Key,
    PythonEnvironment,
)
from torchtune_sys.render.generate.commands import step_commands, typed
from torchtune_sys.render.generate.script import quote
from torchtune_sys.render.layout import clean
from torchtune_sys.render.templates import environment, made_from

STOPPED, NOT_ALL = 3, 1
"""Exit codes of the script, where 2 is usage: a step is a person's; something was refused."""

_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIRST = """
# Steps before the one named are left out: bash THIS 6 goes on with step 6.
first=${1:-1}
if [[ $# -gt 1 || ! ${first} =~ ^[1-9][0-9]?$ ]]; then
  printf '%s\\n' 'usage: bash THIS [STEP]' >&2
  exit 2
fi
"""
_AS_ROOT = """
as_root() {
  if [[ ${EUID} -eq 0 ]]; then "$@"; else sudo -- "$@"; fi
}
"""
_DNF = """
if ! command -v dnf >/dev/null; then # minimal images have microdnf in its place
  as_root microdnf install --assumeyes dnf
fi
"""
_WRITE_FILE = """
write_file() { # PATH: standard input becomes the file
  install -D -m 0644 /dev/stdin "$1"
}
"""
_WRITE_ROOT_FILE = """
write_root_file() { # PATH: standard input becomes the file
  as_root install -D -m 0644 /dev/stdin "$1"
}
"""
_APT_UPDATE = """
apt_update() { # waits while another apt-get holds the lists (apt-daily after a start): DPkg::Lock::Timeout is for dpkg's lock alone
  local said status=0 tries as_root=()
  [[ ${EUID} -eq 0 ]] || as_root=(sudo --)
  for ((tries = 0; tries < 90; tries++)); do
    status=0
    said=$(${as_root[@]+"${as_root[@]}"} env LC_ALL=C apt-get update 2>&1) || status=$?
    [[ ${status} -ne 0 && ${said} == *' lock '* ]] || break
    sleep 10
  done
  printf '%s\\n' "${said}" >&2
  return "${status}"
}
"""
_APT_LISTS = ("apt-get", "update")
_TRUST_KEY = """
trust_key() { # PATH URL FINGERPRINT: the key of a repository, trusted only if it is the one that is meant, and no other with it
  local work found
  work=$(mktemp -d -p /tmp) # not where TMPDIR says: it may be a directory of another user
  curl -fsSL -o "${work}/key" -- "$2"
  found=$(gpg --homedir "${work}" --show-keys --with-colons "${work}/key" | awk -F: '$1 == "pub" { own = 1 } $1 == "fpr" && own { print $10; own = 0 }') || found=
  if [[ ${found} != *"$3" || ${found} == *$'\\n'* ]]; then
    printf '%s\\n' "$2: its fingerprint should be $3, and is ${found:-not to be had (gpg)}: not trusted, and nothing of it installed" >&2
    rm -rf -- "${work}"
    exit 3
  fi
  as_root install -D -m 0644 "${work}/key" "$1"
  as_root rpm --import "$1"
  rm -rf -- "${work}"
}
"""


def shell(value: Installation) -> str:
    """Return the script. It is right for one host, which its head names, and may be run again."""
    lines = ["#!/usr/bin/env bash", *_comments(value), "set -euo pipefail", "umask 022"]
    lines += [part.rstrip() for part in _helpers(value)]
    for number, step in enumerate(value.steps, 1):
        lines += ["", *_step(number, step, len(value.steps))]
    lines += ["", *_end(value)]
    return "\n".join(lines) + "\n"


def _helpers(value: Installation) -> Iterator[str]:
    """Only what the steps use, so that nothing is there to wonder about."""
    actions = [item for step in value.steps if not step.optional for item in step_commands(step)]
    if any(not step.optional for step in value.steps):
        yield "\n" + environment({}).get_template("script/path.sh.j2").render(system=_SYSTEM)
        yield _FIRST
    if any(isinstance(action, Key) or action.root for action in actions):
        yield _AS_ROOT
    if any(isinstance(action, InstallCommand) and action.words[0] == "dnf" for action in actions):
        yield _DNF
    if any(isinstance(action, InstallCommand) and action.words == _APT_LISTS for action in actions):
        yield _APT_UPDATE
    if any(isinstance(action, InstallFile) and not action.root for action in actions):
        yield _WRITE_FILE
    if any(isinstance(action, InstallFile) and action.root for action in actions):
        yield _WRITE_ROOT_FILE
    if any(isinstance(action, Key) for action in actions):
        yield _TRUST_KEY


def refusal(refused: InstallRefused) -> Iterator[str]:
    """Yield the lines that tell it: the reason, the newest that can be had, the way there."""
    yield clean(f"refused: {refused.what}: {refused.reason}")
    if refused.newest:
        yield clean(f"  can be had: {refused.newest}")
    if refused.way:
        yield clean(f"  way there: {refused.way}")


def _comments(value: Installation) -> Iterator[str]:
    yield f"# Made by torchtune-sys {__version__} generate install, from {clean(made_from(value.origin))}"
    yield f"# for {clean(value.host) or 'a host without a name'}: {clean(value.system)}"
    if value.driver is not None:
        driver = f"{value.driver.installed} (installed)" if value.driver.installed else f"branch {value.driver.branch}"
        kind = f", {clean(value.driver.module)} kernel module" if value.driver.module else ""
        yield f"# driver: {clean(driver)}{kind}"
    if value.wheel is not None:
        title = next((step.title for step in value.steps if step.key == "torch"), "torch").removeprefix("torch ")
        built = f"{value.wheel.local} for {value.wheel.abi}, from {value.wheel.index or 'PyPI'}"
        yield f"# torch:  {clean(built if title.startswith(value.wheel.local) else title)}"
    for refused in value.refused:
        yield "#"
        yield from (f"# {line}" for line in refusal(refused))
    if value.notes:
        yield "#"
    for note in value.notes:
        yield f"# {clean(note)}"
    if value.steps:
        yield from ("#", "# The steps; their commands stand below the functions, each step with its reason and source:")
    for number, step in enumerate(value.steps, 1):
        yield f"#   {number}. {clean(step.title)}{' (optional)' if step.optional else ''}"
    alone = next((number for number, step in enumerate(value.steps, 1) if step.key == "torch"), 1)
    if alone > 1 and all(step.key != "python" for step in value.steps):
        yield f"# The steps before {alone} are root's (by sudo), and {alone} is not: bash THIS {alone} takes it alone."


def _step(number: int, step: InstallStep, steps: int) -> Iterator[str]:
    yield f"# {number}. {clean(step.title)}{' (optional: take the # away)' if step.optional else ''}"
    yield f"#    {clean(step.why)}"
    yield f"#    [{clean(step.source)}]"
    if step.by_hand and step.actions:
        yield f"#    by hand: {clean(step.by_hand)}"
    body = [row for item in step_commands(step) for row in _action(item)]
    if step.optional:
        yield from (f"# {row}" for row in _without_helpers(step) or [f"by hand: {clean(step.by_hand)}"])
        return
    # a here-document ends at the beginning of a line, so nothing is indented
    yield f"if [[ ${{first}} -le {number} ]]; then"
    yield f"printf '%s\\n' {quote(f'{number}. {clean(step.title)}')}"
    yield from body
    if not step.actions:
        yield f"printf '%s\\n' {quote(f'by hand: {clean(step.by_hand)}')} {_go_on(number, steps)} >&2"
        yield f"exit {STOPPED}"
    elif step.reboot:
        yield f"printf '%s\\n' 'Start this host again now (systemctl reboot).' {_go_on(number, steps)}"
        yield "exit 0"
    yield "fi"


def _without_helpers(step: InstallStep) -> list[str]:
    """As a person would type it: who takes a step of his own choice does it by hand."""
    rows = []
    for action in step_commands(step):
        if isinstance(action, InstallCommand):
            rows.append(typed(action))
        elif isinstance(action, Key):
            rows += _trusted_by_hand(action)
        else:
            sudo = "sudo " if action.root else ""
            rows.append(f"printf '%s' {quote(action.text)} | {sudo}tee {quote(action.path)}".replace("\n", "\n# "))
    return rows


def _trusted_by_hand(key: Key) -> Iterator[str]:
    kept = quote(key.path)
    yield f"curl -fsSL {quote(key.url)} | sudo tee {kept} >/dev/null"
    yield f"gpg --show-keys {kept}   # one key, and its fingerprint is {key.fingerprint}; else: sudo rm {kept}, and stop"
    yield f"sudo rpm --import {kept}"


def _go_on(number: int, steps: int) -> str:
    return f'"Then: bash $0 {number + 1}"' if number < steps else "'That was the last step.'"


def _action(action: InstallCommand | InstallFile | Key) -> list[str]:
    if isinstance(action, Key):
        return [" ".join(quote(word) for word in ("trust_key", action.path, action.url, action.fingerprint))]
    if isinstance(action, InstallCommand):
        if action.words == _APT_LISTS:
            return ["apt_update"]
        return [("as_root " if action.root else "") + " ".join(quote(word) for word in action.words)]
    rows = action.text.removesuffix("\n").split("\n")
    end = "END"
    while end in rows:
        end += "_"
    program = "write_root_file" if action.root else "write_file"
    return [f"{program} {quote(action.path)} <<'{end}'", *rows, end]


def _end(value: Installation) -> Iterator[str]:
    if value.refused:
        words = "; ".join(f"{refused.what}: {refused.reason}" for refused in value.refused)
        yield f"printf '%s\\n' {quote(clean(f'not available: {words}'))} >&2"
        yield f"exit {NOT_ALL}"
    elif not value.steps:
        yield "printf '%s\\n' 'nothing to install'"
    else:
        made = [action.venv for step in value.steps for action in step.actions if isinstance(action, PythonEnvironment)]
        there = f" --python {quote(f'{made[0]}/bin/python')}" if made else ""
        words = f"done: torchtune-sys check{there} looks at it again, torchtune-sys smoke{there} proves it by training"
        yield f"printf '%s\\n' {quote(words)}"
