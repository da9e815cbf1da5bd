"""Record what a checkout says of every recorded host, and compare another checkout with it, byte by byte.

    python scripts/same_output.py record  FOLDER --tree CHECKOUT [--reports DIR]
    python scripts/same_output.py compare FOLDER [--tree CHECKOUT] [--only GLOB] [--sample N] [--expected FILE] [--lines N] [--kinds]

``record`` keeps the hosts themselves, too (tests/hosts with what they extend, the machines of tests/platforms*.py, pasted reports below
DIR), so that a comparison asks the same of both. Commands are run through the command line alone: no module of the checkout has to be
where it was. The clock stands still.

``--expected`` names a file with a regular expression a line (``#`` begins a comment): a difference all of whose changed lines match one
is listed as expected. ``--kinds`` counts differences by their kind and shows none: between commits that lie far apart, what a key of the
JSON says anew, and each verdict of a rule that both know. Exit status of ``compare``: 0 byte-equal but for those, 1 other differences.

Needs the packages that the project needs. The whole takes about ten minutes on two idle processors; --sample 20 half a minute.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import gc
import gzip
import hashlib
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
USUAL = {
    "report": ("check", "--format", "json"),
    "text": ("check", "--verbose"),
    "plan": ("plan", "--format", "json"),
    "script": ("generate", "script"),
    "snapshot": ("snapshot", "--format", "json"),
    "placement": ("generate", "numactl", "--format", "json"),
}
"""What is asked of each host."""
MORE = {
    **{f"report-{name}": ("check", "--format", name) for name in ("junit", "markdown", "github", "prometheus", "nagios")},
    **{f"plan-{name}": ("plan", "--verbose", "--format", name) for name in ("text", "markdown", "diff")},
    **{f"generate-{name}": ("generate", name) for name in ("env", "install", "dockerfile", "cloud-init", "tuned", "kernel-args")},
    **{f"generate-{name}": ("generate", name) for name in ("sysctl", "limits", "modprobe", "tmpfiles", "udev", "systemd")},
    "placement-commands": ("generate", "numactl", "--format", "commands", "--", "python", "train.py"),
    "provision": ("generate", "script", "--stages", "install,tune,smoke"),
    "workstation": ("check", "--profile", "workstation"),
    "cluster": ("check", "--profile", "cluster"),
    "quiet": ("check", "--quiet"),
}
"""What is asked of the hosts that stand for a kind of machine, too."""
OF_ITSELF = {"rules": ("rules", "--format", "json"), "help": ("--help",)}
THE_TIME = 1767225600.0
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "TZ": "UTC"}
"""All that the commands see of this machine's environment."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare", "_hosts", "_ask"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tree", type=Path, default=HERE, help="a checkout, with src/ and templates/ [this one]")
    parser.add_argument("--reports", type=Path, help="pasted reports, each input.txt or *.txt below it")
    parser.add_argument("--only", default="*", help="hosts by name: typical/*, overlays/swap*, platforms/*, base/*, reports/*")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th host only")
    parser.add_argument("--expected", type=Path, help="regular expressions of differences that are intended")
    parser.add_argument("--lines", type=int, default=12, help="how much of each difference is shown")
    parser.add_argument("--kinds", action="store_true", help="count the kinds of differences, of JSON by key and verdict")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == "_hosts":
        return write_hosts(asked.folder)
    if asked.what == "_ask":
        return ask_all(asked)
    return record(asked) if asked.what == "record" else compare(asked)


def record(asked: argparse.Namespace) -> int:
    (asked.folder / "hosts").mkdir(parents=True, exist_ok=True)
    started(asked.tree, ["_hosts", str(asked.folder)], tests=True).check()
    for report in sorted(asked.reports.rglob("*.txt")) if asked.reports else ():
        name = report.parent.name if report.stem == "input" else report.stem
        keep(asked.folder / "hosts" / "reports" / name, report.read_bytes())
    ask(asked, asked.folder / "said")
    write_hashes(asked.folder)
    commit = subprocess.run(("git", "-C", asked.tree, "rev-parse", "HEAD"), stdout=subprocess.PIPE, text=True).stdout.strip()
    (asked.folder / "COMMIT").write_text(f"{commit}\n")
    print(f"{sum(1 for _ in files(asked.folder / 'said'))} hosts as {commit or asked.tree} sees them, in {asked.folder}")
    return 0


def compare(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as room:
        ask(asked, Path(room))
        expected = patterns(asked.expected)
        pairs = different = 0
        groups: dict[tuple[str, str], list[str]] = defaultdict(list)
        counted: dict[str, list[str]] = defaultdict(list)
        for name, now in said(Path(room)):
            before = json.loads(gzip.decompress((asked.folder / "said" / f"{name}.gz").read_bytes()))
            for command in sorted({*before, *now}):
                pairs += 1
                if before.get(command) != now.get(command):
                    different += 1
                    for kind in sorted(kinds(before.get(command), now.get(command))) if asked.kinds else ():
                        counted[f"{command}: {kind}"].append(name)
                    if not asked.kinds:
                        groups[(command, difference(before.get(command), now.get(command)))].append(name)
    for kind, names in sorted(counted.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):5}  {kind}  ({', '.join(names[:2])}{' …' if names[2:] else ''})")
    unexpected = len(counted)
    for (command, lines), names in sorted(groups.items(), key=lambda item: -len(item[1])):
        reason = next((why for pattern, why in expected if all_match(pattern, lines)), None)
        unexpected += reason is None
        print(f"\n{command}: {len(names)} hosts ({', '.join(names[:3])}{' …' if names[3:] else ''}): {reason or 'NOT EXPECTED'}")
        if reason is None:
            print("\n".join(f"    {line}" for line in lines.splitlines()[: asked.lines]))
    ways = len(groups) + len(counted)
    equal = "byte-equal" if not different else f"{different} differ in {ways} ways, {unexpected} of them not expected"
    print(f"\n{pairs} outputs compared: {equal}")
    return 1 if unexpected or not pairs else 0


def patterns(path: Path | None) -> list[tuple[re.Pattern[str], str]]:
    lines = path.read_text().splitlines() if path else []
    return [(re.compile(line), f"expected ({line})") for line in lines if line.strip() and not line.startswith("#")]


def all_match(pattern: re.Pattern[str], lines: str) -> bool:
    changed = [line[1:].strip() for line in lines.splitlines() if line[:1] in "+-"]
    return all(pattern.search(line) for line in changed)


def difference(before: dict[str, Any] | None, now: dict[str, Any] | None) -> str:
    """The changed lines, JSON a key a line; without places, so that the same change at many hosts is one."""
    one, two = (readable(found) for found in (before, now))
    lines = difflib.unified_diff(one, two, lineterm="", n=1)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def kinds(before: dict[str, Any] | None, now: dict[str, Any] | None) -> set[str]:
    """What is different, without values and places; of a verdict also whose, and both."""
    if before is None or now is None:
        return {"is asked by one of both alone"}
    found = {f"exit status {before['status']}, now {now['status']}"} if before["status"] != now["status"] else set()
    found |= {"what is told on stderr"} if before["err"] != now["err"] else set()
    try:
        return found | set(_kinds("", json.loads(before["out"]), json.loads(now["out"])))
    except ValueError:
        return found | ({"text"} if before["out"] != now["out"] else set())


def _kinds(place: str, before: Any, now: Any, of: str = "") -> Iterator[str]:
    """``of``: what names the item of a list that the value is in."""
    if isinstance(before, list) and isinstance(now, list):
        one, two = _by_name(before), _by_name(now)
        if one is None or two is None:
            for was, is_ in zip(before, now, strict=False):
                yield from _kinds(f"{place}[]", was, is_, of)
            if len(before) != len(now):
                yield f"{place}: {'more' if len(before) < len(now) else 'fewer'} items"
            return
        for name in one.keys() & two.keys():
            yield from _kinds(f"{place}[]", one[name], two[name], name)
        yield from (f"{place}[]: new" for _ in two.keys() - one.keys())
        yield from (f"{place}[]: gone" for _ in one.keys() - two.keys())
    elif isinstance(before, dict) and isinstance(now, dict):
        for key in before.keys() & now.keys():
            yield from _kinds(f"{place}.{key}".lstrip("."), before[key], now[key], of)
        yield from (f"{place}.{key}: new key".lstrip(".") for key in now.keys() - before.keys())
        yield from (f"{place}.{key}: no such key any more".lstrip(".") for key in before.keys() - now.keys())
    elif before != now:
        yield f"{place} of {of}: {before}, now {now}" if place.endswith("verdict") else f"{place}: another value"


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    """The items of a list by what they are called; None where they have no names, or share one."""
    for key in ("rule", "id", "key", "name", "path"):
        names = [item.get(key) for item in items if isinstance(item, dict)]
        if len(names) == len(items) and all(isinstance(name, str) for name in names) and len({*names}) == len(names):
            return dict(zip(names, items, strict=True))
    return None


def readable(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["(not asked)"]
    out = str(found["out"])
    if out.startswith("{"):
        out = json.dumps(json.loads(out), indent=1, ensure_ascii=False)
    return [f"exit status {found['status']}", *out.splitlines(), *(f"stderr: {line}" for line in found["err"].splitlines())]


class Started:
    """One child that works for us."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(argv, env=env)

    def check(self) -> None:
        if self.process.wait():
            raise SystemExit(f"{' '.join(self.process.args)} ended with {self.process.returncode}")  # type: ignore[arg-type]


def started(tree: Path, args: list[str], *, tests: bool = False) -> Started:
    """This script again, with the modules of ``tree`` before all others."""
    places = [tree / "src", *([tree / "tests"] if tests else [])]
    path = os.pathsep.join(str(place.resolve()) for place in places)
    env = {**ENVIRONMENT, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return Started([sys.executable, str(Path(__file__).resolve()), *args], env)


def ask(asked: argparse.Namespace, to: Path) -> None:
    """Every command of every host, in as many processes as there are processors."""
    count = os.cpu_count() or 1
    args = ["_ask", str(asked.folder.resolve()), "--to", str(to.resolve()), "--only", asked.only, "--sample", str(asked.sample)]
    for child in [started(asked.tree, [*args, "--part", f"{part}/{count}"]) for part in range(count)]:
        child.check()


def ask_all(asked: argparse.Namespace) -> int:
    """In a process of the checkout: load it once, then answer each command in a child."""
    import torchtune_sys

    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys."):
        if not module.name.endswith("__main__") and ".smoke.worker" not in module.name:
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as missing:
                if missing.name != "torch":  # what is loaded beside it by others is no part of a command
                    raise
    gc.freeze()  # children write to none of its pages
    at, _, count = asked.part.partition("/")
    os.chdir(asked.folder / "hosts")
    names = [name for name in ("itself", *(name for name, _ in files(Path(".")))) if fnmatch.fnmatch(name, asked.only)]
    for name in names[:: asked.sample][int(at) :: int(count)]:
        found = {key: answer(argv) for key, argv in commands(name)}
        keep(asked.to / f"{name}.gz", gzip.compress(json.dumps(found, ensure_ascii=False).encode(), 6, mtime=0))
    return 0


def commands(name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if name == "itself":
        yield from OF_ITSELF.items()
        return
    many = {**USUAL, **MORE} if name.startswith(("typical/", "platforms/")) or name == "overlays/healthy" else USUAL
    for key, argv in many.items():
        words = (
            (*argv[: argv.index("--")], "--from", name, *argv[argv.index("--") :]) if "--" in argv else (*argv, "--from", name)
        )
        yield key, words


def answer(argv: tuple[str, ...]) -> dict[str, Any]:
    """What one command line says, in a child that ends as the program ends."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            run_command(argv, out.fileno(), err.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return {"status": status, "out": texts[0], "err": texts[1]}


def run_command(argv: tuple[str, ...], out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.pop("PYTHONPATH", None)
    time.time = lambda: THE_TIME
    sys.argv = ["torchtune-sys", *argv]
    status = 70
    try:
        importlib.import_module("torchtune_sys.__main__").main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def write_hosts(folder: Path) -> int:
    """In a process of the checkout, with its tests: every recorded host, with what it extends."""
    import conftest
    from machines_libraries import with_libraries
    from torchtune_sys.host.recorded import load_recording

    for kind, place in (("overlays", ""), ("typical", "typical"), ("base", "base")):
        for path in sorted((conftest.HOSTS / place).glob("*.json")):
            keep_host(folder, f"{kind}/{path.stem}", load_recording(str(path)))
    for module in ("platforms", "platforms_more", "platforms_troubled"):
        tables = [
            value for key, value in vars(importlib.import_module(module)).items() if key in ("PLATFORMS", "MORE", "TROUBLED")
        ]
        for name, make in sorted((name, make) for table in tables for name, make in table.items()):
            keep_host(folder, f"platforms/{name}", with_libraries(make()))
    return 0


def keep_host(folder: Path, name: str, recording: dict[str, Any]) -> None:
    keep(folder / "hosts" / name, json.dumps({**recording, "schema": "torchtune-sys/recording/1"}).encode())


def keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(path.relative_to(folder)), path


def said(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, path in files(folder):
        yield name.removesuffix(".gz"), json.loads(gzip.decompress(path.read_bytes()))


def write_hashes(folder: Path) -> None:
    """A line for each output, for a look with plain tools."""
    with open(folder / "hashes.txt", "w", encoding="utf-8") as to:
        for name, found in said(folder / "said"):
            for command, answered in found.items():
                to.write(f"{hashlib.sha256(json.dumps(answered).encode()).hexdigest()}  {name}  {command}\n")


if __name__ == "__main__":
    sys.exit(main())
