"""Tries the lists that were written down beforehand and writes a line for each fault:
``PYTHONPATH=tests python -m smoke.faults.second LIST [NAME …]``, the lists being reported, opened, sealed, third-opened, third-sealed,
fourth-opened, fourth-sealed, fifth-opened, fifth-sealed, sixth-opened, sixth-sealed, seventh-opened,
seventh-sealed, eighth-opened, ninth-alike, tenth-alike, eleventh-opened, eleventh-sealed,
eleventh-alike, twelfth-opened, twelfth-sealed, thirteenth-opened, thirteenth-sealed, fourteenth-opened, fourteenth-sealed,
fifteenth-opened, fifteenth-sealed, sixteenth-opened, sixteenth-sealed, seventeenth-opened, seventeenth-sealed,
eighteenth-opened, eighteenth-sealed, nineteenth-opened, nineteenth-sealed, twentieth-opened, twentieth-sealed, and thirteenth-harmless, fifteenth-harmless, sixteenth-harmless,
seventeenth-harmless, eighteenth-harmless, nineteenth-harmless and twentieth-harmless (what breaks nothing: no stage may fail).

right: the stage, the cause and the rank that were expected; another stage: the same cause elsewhere; vague: something failed without a
cause; wrong: with another cause; not noticed: nothing failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from smoke.faults.bench import NotHere, Outcome
from smoke.faults.eighteenth import harmless as eighteenth_harmless
from smoke.faults.eighteenth import opened as eighteenth_opened
from smoke.faults.eighteenth import sealed as eighteenth_sealed
from smoke.faults.eighth import opened as eighth_opened
from smoke.faults.eleventh import alike as eleventh_alike
from smoke.faults.eleventh import opened as eleventh_opened
from smoke.faults.eleventh import sealed as eleventh_sealed
from smoke.faults.fifteenth import harmless as fifteenth_harmless
from smoke.faults.fifteenth import opened as fifteenth_opened
from smoke.faults.fifteenth import sealed as fifteenth_sealed
from smoke.faults.fifth import opened as fifth_opened
from smoke.faults.fifth import sealed as fifth_sealed
from smoke.faults.fourteenth import opened as fourteenth_opened
from smoke.faults.fourteenth import sealed as fourteenth_sealed
from smoke.faults.fourth import opened as fourth_opened
from smoke.faults.fourth import sealed as fourth_sealed
from smoke.faults.nineteenth import harmless as nineteenth_harmless
from smoke.faults.nineteenth import opened as nineteenth_opened
from smoke.faults.nineteenth import sealed as nineteenth_sealed
from smoke.faults.ninth import alike as ninth_alike
from smoke.faults.row import Fault
from smoke.faults.second import opened, reported, sealed
from smoke.faults.seventeenth import harmless as seventeenth_harmless
from smoke.faults.seventeenth import opened as seventeenth_opened
from smoke.faults.seventeenth import sealed as seventeenth_sealed
from smoke.faults.seventh import opened as seventh_opened
from smoke.faults.seventh import sealed as seventh_sealed
from smoke.faults.sixteenth import harmless as sixteenth_harmless
from smoke.faults.sixteenth import opened as sixteenth_opened
from smoke.faults.sixteenth import sealed as sixteenth_sealed
from smoke.faults.sixth import opened as sixth_opened
from smoke.faults.sixth import sealed as sixth_sealed
from smoke.faults.tenth import alike as tenth_alike
from smoke.faults.third import opened as third_opened
from smoke.faults.third import sealed as third_sealed
from smoke.faults.thirteenth import harmless
from smoke.faults.thirteenth import opened as thirteenth_opened
from smoke.faults.thirteenth import sealed as thirteenth_sealed
from smoke.faults.trial import expected, tried, words
from smoke.faults.twelfth import opened as twelfth_opened
from smoke.faults.twelfth import sealed as twelfth_sealed
from smoke.faults.twentieth import harmless as twentieth_harmless
from smoke.faults.twentieth import opened as twentieth_opened
from smoke.faults.twentieth import sealed as twentieth_sealed

LISTS = {"reported": reported.ROWS, "opened": opened.ROWS, "sealed": sealed.ROWS}
LISTS |= {"third-opened": third_opened.ROWS, "third-sealed": third_sealed.ROWS}
LISTS |= {"fourth-opened": fourth_opened.ROWS, "fourth-sealed": fourth_sealed.ROWS}
LISTS |= {"fifth-opened": fifth_opened.ROWS, "fifth-sealed": fifth_sealed.ROWS}
LISTS |= {"sixth-opened": sixth_opened.ROWS, "sixth-sealed": sixth_sealed.ROWS}
LISTS |= {"eighth-opened": eighth_opened.ROWS}
LISTS |= {"ninth-alike": ninth_alike.ROWS, "tenth-alike": tenth_alike.ROWS}
LISTS |= {"eleventh-opened": eleventh_opened.ROWS, "eleventh-sealed": eleventh_sealed.ROWS, "eleventh-alike": eleventh_alike.ROWS}
LISTS |= {"twelfth-opened": twelfth_opened.ROWS, "twelfth-sealed": twelfth_sealed.ROWS}
LISTS |= {"thirteenth-opened": thirteenth_opened.ROWS, "thirteenth-sealed": thirteenth_sealed.ROWS}
LISTS |= {"fourteenth-opened": fourteenth_opened.ROWS, "fourteenth-sealed": fourteenth_sealed.ROWS}
LISTS |= {"fifteenth-opened": fifteenth_opened.ROWS, "fifteenth-sealed": fifteenth_sealed.ROWS}
LISTS |= {"thirteenth-harmless": harmless.ROWS, "fifteenth-harmless": fifteenth_harmless.ROWS}
LISTS |= {"sixteenth-opened": sixteenth_opened.ROWS, "sixteenth-sealed": sixteenth_sealed.ROWS}
LISTS |= {"sixteenth-harmless": sixteenth_harmless.ROWS}
LISTS |= {"seventeenth-opened": seventeenth_opened.ROWS, "seventeenth-sealed": seventeenth_sealed.ROWS}
LISTS |= {"seventeenth-harmless": seventeenth_harmless.ROWS}
LISTS |= {"eighteenth-opened": eighteenth_opened.ROWS, "eighteenth-sealed": eighteenth_sealed.ROWS}
LISTS |= {"eighteenth-harmless": eighteenth_harmless.ROWS}
LISTS |= {"nineteenth-opened": nineteenth_opened.ROWS, "nineteenth-sealed": nineteenth_sealed.ROWS}
LISTS |= {"nineteenth-harmless": nineteenth_harmless.ROWS}
LISTS |= {"twentieth-opened": twentieth_opened.ROWS, "twentieth-sealed": twentieth_sealed.ROWS}
LISTS |= {"twentieth-harmless": twentieth_harmless.ROWS}
LISTS |= {"seventh-opened": seventh_opened.ROWS, "seventh-sealed": seventh_sealed.ROWS}


def main(part: str, names: list[str]) -> None:
    for fault in LISTS[part]:
        if names and fault.name not in names:
            continue
        with tempfile.TemporaryDirectory(prefix="tt-") as folder:
            try:
                outcome = tried([fault], Path(folder), os.environ["TORCHTUNE_SYS_TEST_TORCH"])
            except NotHere as why:
                print(f"{part}\t{fault.name}\tskipped\t{why}", flush=True)
                continue
        failed = [f"{name} {found['cause']!r}: {words(found)[:150]}" for name, found in _failed(outcome)]
        print(f"{part}\t{fault.name}\t{_grade(fault, outcome)}\t{outcome.seconds:.0f} s\t{'; '.join(failed)}", flush=True)
        if os.environ.get("VERBOSE"):
            print(outcome.told, flush=True)


def _failed(outcome: Outcome) -> list[tuple[str, dict[str, object]]]:
    return [(name, found) for name, found in outcome.stages.items() if found["verdict"] not in ("pass", "na")]


def _grade(fault: Fault, outcome: Outcome) -> str:
    failed = _failed(outcome)
    if not fault.cause:
        return "no alarm" if outcome.rc == 0 else "false alarm"
    if not expected(fault, outcome):
        return "right"
    if not failed:
        return "not noticed" if outcome.stages else "no report"
    causes = [found["cause"] for _, found in failed]
    if fault.cause in causes:
        return "right cause"
    return "wrong" if any(causes) else "vague"


main(sys.argv[1], sys.argv[2:])
