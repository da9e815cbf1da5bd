"""A probe never raises, whatever the host answers: each kind of answer is corrupted in each way, for each family."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import HOSTS
from torchtune_sys import engine
from torchtune_sys.host.base import Host, Output, Space, Stat
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import PROBES
from torchtune_sys.rules import CATALOGUE

TEXTS: dict[str, Callable[[str], str]] = {
    "empty": lambda _text: "",
    "blank": lambda _text: "\n \n\t\n",
    "binary": lambda _text: "\x00\ufffd\x01\ufffd\x7f" * 50,
    "word": lambda _text: "nonsense",
    "negative": lambda _text: "-1\n",
    "huge number": lambda _text: "9" * 400 + "\n",
    "not a number": lambda _text: "nan\n",
    "infinite": lambda _text: "inf\n",
    "float": lambda _text: "0.5\n",
    "percent": lambda _text: "%s %d {} {0}\n",
    "huge": lambda text: (text or "x ") * (20_000 // max(len(text), 2) + 1),
    "cut": lambda text: text[: len(text) // 2],
    "no newline": lambda text: text.strip(),
    "upside down": lambda text: "\n".join(reversed(text.splitlines())),
    "backwards": lambda text: text[::-1],
    "no blanks": lambda text: "".join(text.split()),
    "colons": lambda text: text.replace(" ", ":").replace("\t", ":"),
    "minus": lambda text: "".join("-" + character if character.isdigit() else character for character in text),
    "other digits": lambda text: text.replace("1", "\u00b2").replace(
        "2", "\u0662"
    ),  # isdigit() is true of both, int() takes only one
    "zeros": lambda text: "".join("0" if character.isdigit() else character for character in text),
    "nines": lambda text: "".join("9" * 30 if character.isdigit() else character for character in text),
    "doubled": lambda text: text + text,
    "windows": lambda text: text.replace("\n", "\r\n"),
    "long line": lambda text: text.replace("\n", " ") * 20,
}
ANSWERS: dict[str, Any] = {
    "none": None,
    "true": True,
    "number": -1,
    "huge": 1 << 80,
    "float": float("nan"),
    "text": "nonsense",
    "list": [],
    "lists": [[[]], None, {}, -1, "x"],
    "object": {},
    "strange object": {"devices": "x", "uid": "x", "user": 3, "error": 5, "": None, "packages": {"a": 1}},
}


def spoil(value: Any, into: Any) -> Any:
    """The same structure with each scalar replaced."""
    if isinstance(value, dict):
        return {key: spoil(item, into) for key, item in value.items()}
    if isinstance(value, list):
        return [spoil(item, into) for item in value]
    return into


class Corrupted(Host):
    """Answers as the healthy host does, except where one of the looks is replaced."""

    origin = "corrupted"

    def __init__(self, inner: Host, **looks: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._looks = looks

    def _changed(self, kind: str, found: Any) -> Any:
        return self._looks[kind](found) if kind in self._looks else found

    def text(self, path: str) -> Fact[str]:
        return self._changed("text", self._inner.text(path))

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return self._changed("names", self._inner.names(path))

    def link(self, path: str) -> Fact[str]:
        return self._changed("link", self._inner.link(path))

    def real(self, path: str) -> Fact[str]:
        return self._changed("real", self._inner.real(path))

    def stat(self, path: str) -> Fact[Stat]:
        return self._changed("stat", self._inner.stat(path))

    def space(self, path: str) -> Fact[Space]:
        return self._changed("space", self._inner.space(path))

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        return self._changed("run", self._inner.run(argv, timeout_s))

    def env(self) -> Fact[dict[str, str]]:
        return self._changed("env", self._inner.env())

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._changed("ask", self._inner.ask(question, timeout_s))


RECORDING = load_recording(str(HOSTS / "healthy.json"))
INTENT = Workload(ranks=8, nodes=2, workers=4, data=("/data/set",), checkpoints=("/data/out",))


HEALTHY = RecordedHost(RECORDING, "healthy")
LOOKS = ("text", "names", "link", "real", "stat", "space", "run", "env", "ask")


def raised(family: str, **looks: Callable[[Any], Any]) -> str:
    """Where the family's probe raised on such a host; ``""`` if it did not, and made values that can be written down."""
    try:
        codec.dumps(PROBES[family](Corrupted(HEALTHY, **looks), INTENT))
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "torchtune_sys" in frame.filename]
        return f"{type(error).__name__}: {error} at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
    return ""


def kept(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change, for what is there only."""
    return lambda found: found if isinstance(found, Missing) else change(found)


def constant(value: Any) -> Callable[[Any], Any]:
    return lambda _found: value


def variables(spoilt: Callable[[str], str]) -> Callable[[Any], Any]:
    names = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "CUDA_HOME",
        "PATH",
        "HOME",
    ]

    def changed(found: Any) -> dict[str, str]:
        values = {} if isinstance(found, Missing) else found
        return {name: spoilt(values.get(name, "/a:1")) for name in (*values, *names)}

    return changed


def attacks() -> Iterator[tuple[str, str, dict[str, Callable[[Any], Any]]]]:
    """(group, name, looks that are replaced)."""
    for name, spoilt in TEXTS.items():
        yield "texts", name, {"text": kept(spoilt)}
        # Also where the healthy host has no file, so that the ways that other hosts take are taken too.
        yield (
            "texts everywhere",
            name,
            {"text": lambda found, spoilt=spoilt: spoilt("1 2 3\n" if isinstance(found, Missing) else found)},
        )
        yield "variables", name, {"env": variables(spoilt)}
        for rc in (0, 1, -11):
            yield "commands", f"{name} {rc}", {"run": constant(Output(rc=rc, stdout=spoilt("a 1\nb: 2\n"), stderr=spoilt("c")))}
    for why in Why:
        refusal = constant(Missing(why, "test", "broken"))
        for look in LOOKS:
            yield "refusals", f"{look} {why.value}", {look: refusal}
        yield "refusals", f"everything {why.value}", dict.fromkeys(LOOKS, refusal)
    for listing in (
        (),
        ("", "."),
        ("-1", "x", "\ufffd"),
        ("node999999999999999999", "cpu-3", "policy", "ib0:1"),
        tuple(map(str, range(30))),
    ):
        yield "listings", str(listing)[:40], {"names": constant(listing)}
    for added in ("0000:zz:00.0", "node", "cpux", "\ufffd", "0", "..", "a b", "x" * 300, "-", "nvme0n1p"):
        yield "strange names", added[:20], {"names": kept(lambda found, added=added: (*found, added))}
    for target in ("", "/", "..", "../../../..", "nonsense", "x" * 5000, "\ufffd", "/proc/self/root/../.."):
        yield "links", target[:20], {"link": constant(target), "real": constant(target or "/")}
    for number, stat in enumerate(STATS):
        yield "stats", str(number), {"stat": constant(stat)}
    for size in (0, -1, 1 << 70):
        yield "space", str(size), {"space": constant(Space(size=size, free=-size, inodes=size, inodes_free=5))}
    for name, answer in ANSWERS.items():
        yield "answers", name, {"ask": constant(answer)}
        yield "values in answers", name, {"ask": kept(lambda found, answer=answer: spoil(found, answer))}


STATS = (
    Stat(mode=0o040755, uid=0, gid=0, size=0),
    Stat(mode=0, uid=-1, gid=1 << 40, size=-5, device="x", special=":"),
    Stat(mode=0o020666, uid=0, gid=0, size=0, special="195:255"),
)
GROUPS = tuple(dict.fromkeys(group for group, _, _ in attacks()))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("family", sorted(PROBES))
def test_a_probe_never_raises(family: str, group: str) -> None:
    faults = {name: raised(family, **looks) for found, name, looks in attacks() if found == group}
    assert {name: fault for name, fault in faults.items() if fault} == {}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", sorted(TEXTS))
def test_no_rule_crashes_on_what_the_probes_make_of_it(kind: str) -> None:
    host = Corrupted(HEALTHY, text=kept(TEXTS[kind]), env=variables(TEXTS[kind]))
    seen = engine.snapshot(host, INTENT, timeout_s=60)
    crashed = {
        result.rule.id: result.note or result.why_unknown
        for result in engine.judge(seen, CATALOGUE)
        if result.verdict is Verdict.CRASHED
    }
    assert crashed == {}
