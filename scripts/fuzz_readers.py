"""Change the files of strangers, led by which lines are reached, and read them: ``fuzz_readers.py [--seconds N] [TARGET …]``.

Needs atheris (https://github.com/google/atheris, ``pip install atheris``) beside what the tests need. Each target of
``tests/fuzz_targets.py`` runs in a process of its own for ``--seconds`` (600), with at most 512 MiB above what libFuzzer itself
takes, and 30 s for one input, of which instrumentation takes most. What fails is kept in ``--keep DIR``; the table that is printed
has for each target the inputs tried, the lines' edges reached, the peak memory and what failed. Exit 1 where anything failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
MEMORY_MIB = 512
SECONDS_EACH = 30


def one(name: str, options: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    sys.path.insert(0, str(TESTS))
    with atheris.instrument_imports(include=["torchtune_sys"], enable_loader_override=False):
        from fuzz_targets import TARGETS
    atheris.Setup([sys.argv[0], *options], TARGETS[name].read)
    atheris.Fuzz()


def run(name: str, seconds: int, keep: Path) -> tuple[str, bool]:
    sys.path.insert(0, str(TESTS))
    from fuzz_targets import TARGETS

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(TARGETS[name].seeds()):
            (Path(corpus) / str(number)).write_bytes(seed)
        prefix = keep / (re.sub(r"\W", "-", name) + "-")
        limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={SECONDS_EACH}", "-max_len=65536"]
        argv = [sys.executable, __file__, "--one", name, corpus, *limits, f"-artifact_prefix={prefix}", "-print_final_stats=1"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    said = done.stdout

    def last(pattern: str) -> str:
        return next(iter(re.findall(pattern, said)[-1:]), "?")

    failed = done.returncode != 0
    if failed:
        prefix.with_suffix(".log").write_text(said[-20_000:])
    seen = re.findall(r"^(?:Crash|[A-Za-z]\w*Error|\w*Exception): .*|^==.*(?:timeout|out-of-memory).*", said, re.MULTILINE)
    row = (
        name,
        last(r"stat::number_of_executed_units:\s*(\d+)") if "stat::" in said else last(r"#(\d+)"),
        last(r" cov: (\d+)"),
        last(r"stat::peak_rss_mb:\s*(\d+)"),
        (seen[-1][:200] if seen else f"exit {done.returncode}") if failed else "nothing",
    )
    return "| " + " | ".join(row) + " |", failed


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for each target (600)")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where what failed is kept (build/fuzz)")
    parser.add_argument("target", nargs="*", help="all where none is named")
    asked = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from fuzz_targets import TARGETS

    unknown = set(asked.target) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are: {', '.join(TARGETS)}")
    asked.keep.mkdir(parents=True, exist_ok=True)
    print("| target | inputs | edges | peak MiB | failed |\n|---|---|---|---|---|", flush=True)
    failed = False
    for name in asked.target or TARGETS:
        row, bad = run(name, asked.seconds, asked.keep)
        failed |= bad
        print(row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
