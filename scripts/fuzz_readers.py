"""Change the files of strangers and read them, for as long as one wants: ``fuzz_readers.py [--minutes N] [--keep DIR] [TARGET …]``.

The minutes are of the processor, not of the clock, so that a busy machine does not make a short run look long: those of reading
inputs, not of starting. Two engines, one after the other, each in a process of its own: *atheris* (https://github.com/google/atheris, ``pip install
atheris``), led by which lines of ours are reached, and *hypothesis*, which joins lines of true files with odd ones. Both change half of the documents of JSON so that
they stay JSON (``tests/fuzz/mutating.py``). An input
that takes more than 512 MiB or 30 s (atheris: instrumented, several times slower) fails. Then every input that reached something
new is read again as it would be in a command, which gives the times and the memory of the table, and the slowest at 1, 2 and 4
times its size.

What was done is kept in ``--keep DIR`` (build/fuzz): a run that is started again goes on where it was ended, and does nothing for a target that has
had its minutes. ``--table`` prints what is known so far. Exit 1 where anything failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))
MEMORY_MIB = 512
SECONDS_EACH = 30
LONGEST = 65536
LONGEST_DOCUMENT = 1 << 20
"""Bytes of JSON that hypothesis makes: a list of 100,000 elements."""
GROWTH_FROM = 16384
"""Bytes that the slowest input is made as long as, before it is doubled twice."""
MEASURING_S = 60
ENGINES = ("atheris", "hypothesis")
SPENT = "seconds of the processor: "
"""What an engine prints before how long it read inputs."""


def atheris_run(name: str, corpus: Path, seconds: int, prefix: Path) -> NoReturn:
    """libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["torchtune_sys"], enable_loader_override=False):
        from fuzz.targets import TARGETS
    from fuzz.mutating import changed_document, values_of

    read, others = TARGETS[name].read, values_of(TARGETS[name].seeds())
    started = time.process_time()

    def tried(data: bytes) -> None:
        read(data)
        if time.process_time() - started > seconds:
            print(f"{SPENT}{time.process_time() - started:.1f}", flush=True)
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer knows the clock alone: it prints its figures and ends

    def changed(data: bytes, longest: int, seed: int) -> bytes:
        chance = random.Random(seed)
        found = changed_document(data, chance, others) if chance.getrandbits(1) else None
        made: bytes = found if found is not None and len(found) <= longest else atheris.Mutate(data, longest)
        return made

    limits = [f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={SECONDS_EACH}", f"-max_len={LONGEST}"]
    options = [str(corpus), *limits, f"-artifact_prefix={prefix}", "-print_final_stats=1", "-close_fd_mask=0"]
    atheris.Setup([sys.argv[0], *options], tried, **({"custom_mutator": changed} if others else {}))
    atheris.Fuzz()
    raise SystemExit


def hypothesis_run(name: str, corpus: Path, seconds: int, prefix: Path) -> None:
    """Rounds of some hundred inputs, each from a seed of its own, until the time is up."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from fuzz.mutating import changed_document, values_of
    from fuzz.targets import TARGETS

    seeds = TARGETS[name].seeds()
    texts = [data for data in seeds if b"\0" not in data]
    lines = st.sampled_from(sorted({line for data in texts for line in data.split(b"\n") if len(line) < 2000} or {b""}))
    odd = st.one_of(st.binary(max_size=40), st.text(max_size=40).map(str.encode), st.integers().map(lambda n: b"%d" % n))
    texts_made = st.lists(st.one_of(lines, lines, odd), max_size=60).map(b"\n".join).map(_short)
    cut = st.tuples(st.sampled_from(seeds), st.integers(0, LONGEST), st.integers(0, 400), odd).map(
        lambda found: _short(found[0][: found[1]] + found[3] + found[0][found[1] + found[2] :])
    )
    kinds = [cut] + ([texts_made] if texts else [])
    others = values_of(seeds)
    if others:
        kept = [data for path in sorted(corpus.iterdir()) if len(data := path.read_bytes()) <= LONGEST]
        chance = st.integers(0, 2**32).map(random.Random)
        document = st.tuples(st.sampled_from([*seeds, *kept]), chance).map(lambda made: changed_document(*made, others) or b"")
        kinds += [document.map(lambda data: data[:LONGEST_DOCUMENT])] * len(kinds)
    count, begun = 0, time.process_time()
    worst = 0.0
    while time.process_time() - begun < seconds:

        @seed(int(time.time_ns() % 2**32))
        @settings(
            max_examples=200, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        @given(st.one_of(kinds))
        def tried(data: bytes) -> None:
            nonlocal count, worst
            if time.process_time() - begun > seconds:
                return
            count += 1
            last = prefix.with_suffix(".last")
            last.write_bytes(data)
            started = time.process_time()
            TARGETS[name].read(data)
            took = time.process_time() - started
            if took > worst:
                worst = took
                (corpus / "hypothesis-slowest").write_bytes(data)
            if took > SECONDS_EACH:
                raise AssertionError(f"{took:.0f} s for one input: timeout")

        tried()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{SPENT}{time.process_time() - begun:.1f}\nstat::number_of_executed_units: {count}\nstat::peak_rss_mb: {peak}")
    if peak > MEMORY_MIB:
        raise AssertionError(f"out-of-memory: {peak} MiB")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _short(data: bytes) -> bytes:
    return data[:LONGEST]


def measure(name: str, corpus: Path, *_: Any) -> None:
    """Every kept input once more, without instrumentation: one line of JSON."""
    from fuzz.targets import TARGETS

    read = TARGETS[name].read

    def seconds(data: bytes) -> float:
        started = time.process_time()
        read(data)
        return time.process_time() - started

    inputs = sorted({path.read_bytes()[:LONGEST_DOCUMENT] for path in corpus.iterdir()}, key=len)
    for data in inputs[:1]:
        seconds(data)  # imports, and patterns are compiled
    took: list[tuple[float, int]] = []
    until = time.monotonic() + MEASURING_S
    for number, data in enumerate(inputs[::-1]):
        if time.monotonic() < until:
            took.append((seconds(data), len(inputs) - 1 - number))
    slowest, which = max(took)
    base = grown(inputs[which], math.ceil(GROWTH_FROM / max(len(inputs[which]), 1)))
    growth = [round(min(seconds(grown(base, factor)) for _ in range(2)), 4) for factor in (1, 2, 4)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"read": len(took), "slowest_s": slowest, "bytes": len(inputs[which]), "growth_s": growth, "peak": peak}))


def grown(data: bytes, factor: int) -> bytes:
    """``factor`` times as much: of a JSON document the elements of its lists, else the bytes again and again."""
    found = _json(data)
    if isinstance(found, dict) and (lists := [key for key, value in found.items() if isinstance(value, list) and value]):
        return json.dumps({**found, **{key: found[key] * factor for key in lists}}).encode()
    return data * factor


RUNS: dict[str, Callable[[str, Path, int, Path], None]] = {
    "atheris": atheris_run,
    "hypothesis": hypothesis_run,
    "measure": measure,
}


def child(engine: str, name: str, keep: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, __file__, "--one", engine, name, str(corpus_of(name, keep)), str(seconds), str(prefix_of(name, keep))]
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


def prefix_of(name: str, keep: Path) -> Path:
    return keep / (re.sub(r"\W+", "-", name) + "-")


def corpus_of(name: str, keep: Path) -> Path:
    """Where the inputs of a target are kept; those to start from are put there first."""
    from fuzz.targets import TARGETS

    folder = keep / "corpus" / re.sub(r"\W+", "-", name)
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    return folder


def run(engine: str, name: str, keep: Path, seconds: int, before: dict[str, Any]) -> dict[str, Any]:
    """What is known of a target and engine after ``seconds`` more."""
    done = child(engine, name, keep, seconds)
    said = done.stdout
    spent = re.findall(f"^{re.escape(SPENT)}([0-9.]+)", said, re.MULTILINE)
    used = round(float(spent[-1])) if spent else 0

    def last(pattern: str) -> int:
        return int(next(iter(re.findall(pattern, said)[-1:]), 0))

    failed = ""
    if done.returncode != 0:
        prefix_of(name, keep).with_suffix(f".{engine}.log").write_text(said[-40_000:])
        seen = re.findall(
            r"^(?:Crash|[A-Za-z][\w.]*(?:Error|Exception)): .*|^==.*(?:timeout|out-of-memory).*", said, re.MULTILINE
        )
        failed = seen[-1][:200] if seen else f"exit {done.returncode}"
    units = last(r"stat::number_of_executed_units:\s*(\d+)") or last(r"#(\d+)")
    return {
        "seconds": before.get("seconds", 0) + used,
        "inputs": before.get("inputs", 0) + units,
        "edges": max(before.get("edges", 0), last(r" cov: (\d+)")),
        "peak": max(before.get("peak", 0), last(r"stat::peak_rss_mb:\s*(\d+)")),
        "failed": [*before.get("failed", []), *([failed] if failed else [])],
    }


def table(known: dict[str, Any]) -> str:
    rows = [
        "| target | atheris: min | inputs | edges | hypothesis: min | inputs | peak MiB | slowest input | at 1×, 2×, 4× of 16 KiB or more | failed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in known.items():
        one, two, end = (found.get(part, {}) for part in (*ENGINES, "measure"))
        growth = ", ".join(f"{value:.3g}" for value in end.get("growth_s", ()))
        slowest = f"{end['slowest_s']:.3f} s ({end['bytes']:,} bytes)" if end else "?"
        failed = "; ".join([*one.get("failed", ()), *two.get("failed", ())]) or "nothing"
        minutes = [f"{part.get('seconds', 0) / 60:.1f}" for part in (one, two)]
        cells = (name, minutes[0], f"{one.get('inputs', 0):,}", one.get("edges", 0), minutes[1], f"{two.get('inputs', 0):,}")
        rows.append(
            "| " + " | ".join(map(str, (*cells, max(one.get("peak", 0), two.get("peak", 0)), slowest, growth, failed))) + " |"
        )
    return "\n".join(rows)


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        engine, name, corpus, seconds, prefix = sys.argv[2:]
        RUNS[engine](name, Path(corpus), int(seconds), Path(prefix))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="for each target and engine (10)")
    parser.add_argument("--engine", choices=ENGINES, help="this one alone")
    parser.add_argument(
        "--keep", type=Path, default=Path("build/fuzz"), help="where inputs, results and what failed are kept (build/fuzz)"
    )
    parser.add_argument("--table", action="store_true", help="print what is known so far, and do nothing")
    parser.add_argument("target", nargs="*", help="all where none is named")
    asked = parser.parse_args()
    from fuzz.targets import TARGETS

    unknown = set(asked.target) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    asked.keep.mkdir(parents=True, exist_ok=True)
    results = asked.keep / "results.json"
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for name in () if asked.table else asked.target or TARGETS:
        mine = known.setdefault(name, {})
        for engine in [asked.engine] if asked.engine else ENGINES:
            left = round(asked.minutes * 60) - mine.get(engine, {}).get("seconds", 0)
            if left > 0:
                mine[engine] = run(engine, name, asked.keep, left, mine.get(engine, {}))
        last = child("measure", name, asked.keep, 0)
        mine["measure"] = json.loads(last.stdout.splitlines()[-1]) if last.returncode == 0 else {}
        draft = results.with_suffix(".new")
        draft.write_text(json.dumps(known, indent=1))
        draft.replace(results)  # whole or not at all: a run may be ended at any moment
    print(table(known))
    return int(any(found[engine]["failed"] for found in known.values() for engine in ENGINES if engine in found))


if __name__ == "__main__":
    sys.exit(main())
