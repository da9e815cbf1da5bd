"""Files of strangers that somebody changed at random: read, or refused, and nothing else. ``scripts/fuzz_readers.py`` goes on for as
long as one wants."""

from __future__ import annotations

import random

import pytest

from fuzz.mutating import changed_document, values_of
from fuzz.target import Crash, judged
from fuzz.targets import TARGETS
from torchtune_sys.model.values import Missing, Why

ROUNDS = 25
"""For each kind of file; the same in every run."""


def changed(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """``data`` with some of it cut, doubled, overwritten, or replaced by a piece of ``other``."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        start = chance.randint(0, len(found))
        end = min(len(found), start + chance.choice((1, 2, 8, 64, 1024)))
        match chance.randint(0, 4):
            case 0:
                del found[start:end]
            case 1:
                found[start:start] = found[start:end]
            case 2:
                found[start:end] = chance.randbytes(end - start)
            case 3:
                found[start:end] = chance.choice((b"", b"\0", b"\n", b"-1", b"9" * 30, b"\xff\xfe", b"nan", b"  ", b":", b"[["))
            case _:
                at = chance.randint(0, len(other))
                found[start:end] = other[at : at + (end - start)]
    return bytes(found)


@pytest.mark.sampled(8, 16)
@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_file_is_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = [seed for seed in target.seeds() if len(seed) < 100_000]
    assert seeds, "nothing to start from"
    chance = random.Random(name)
    others = values_of(seeds[:20])
    for number in range(ROUNDS):
        document = changed_document(chance.choice(seeds), chance, others) if others and number % 2 else None
        data = document or changed(chance.choice(seeds), chance.choice(seeds), chance)
        try:
            target.read(data)
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\nof {data[:2000]!r}")


def test_a_probe_that_crashes_is_told(healthy: object) -> None:
    import msgspec

    with pytest.raises(Crash, match="somewhere"):
        judged(msgspec.structs.replace(healthy, cpu=Missing(Why.CRASHED, "probe cpu", "somewhere")))  # type: ignore[type-var]
