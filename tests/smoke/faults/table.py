"""All faults."""

from __future__ import annotations

from smoke.faults import calculating, differing, exchanging, feeding, hosting, installing, keeping, mixed
from smoke.faults.eighteenth import opened as eighteenth_opened
from smoke.faults.eighteenth import sealed as eighteenth_sealed
from smoke.faults.eighth import opened as eighth_opened
from smoke.faults.eleventh import alike as eleventh_alike
from smoke.faults.eleventh import opened as eleventh_opened
from smoke.faults.eleventh import sealed as eleventh_sealed
from smoke.faults.fifteenth import opened as fifteenth_opened
from smoke.faults.fifteenth import sealed as fifteenth_sealed
from smoke.faults.fifth import opened as fifth_opened
from smoke.faults.fifth import sealed as fifth_sealed
from smoke.faults.fourteenth import opened as fourteenth_opened
from smoke.faults.fourteenth import sealed as fourteenth_sealed
from smoke.faults.fourth import opened as fourth_opened
from smoke.faults.fourth import sealed as fourth_sealed
from smoke.faults.ninth import alike as ninth_alike
from smoke.faults.row import Fault
from smoke.faults.second import opened, reported, sealed
from smoke.faults.seventeenth import opened as seventeenth_opened
from smoke.faults.seventeenth import sealed as seventeenth_sealed
from smoke.faults.seventh import opened as seventh_opened
from smoke.faults.seventh import sealed as seventh_sealed
from smoke.faults.sixteenth import opened as sixteenth_opened
from smoke.faults.sixteenth import sealed as sixteenth_sealed
from smoke.faults.sixth import opened as sixth_opened
from smoke.faults.sixth import sealed as sixth_sealed
from smoke.faults.tenth import alike as tenth_alike
from smoke.faults.third import opened as third_opened
from smoke.faults.third import sealed as third_sealed
from smoke.faults.thirteenth import opened as thirteenth_opened
from smoke.faults.thirteenth import sealed as thirteenth_sealed
from smoke.faults.twelfth import opened as twelfth_opened
from smoke.faults.twelfth import sealed as twelfth_sealed
from smoke.faults.twentieth import opened as twentieth_opened

FAULTS: tuple[Fault, ...] = (
    *calculating.ROWS,
    *mixed.ROWS,
    *feeding.ROWS,
    *hosting.ROWS,
    *exchanging.ROWS,
    *differing.ROWS,
    *keeping.ROWS,
    *installing.ROWS,
    *reported.ROWS,
    *opened.ROWS,
    *sealed.ROWS,
    *third_opened.ROWS,
    *third_sealed.ROWS,
    *fourth_opened.ROWS,
    *fourth_sealed.ROWS,
    *fifth_opened.ROWS,
    *fifth_sealed.ROWS,
    *sixth_opened.ROWS,
    *sixth_sealed.ROWS,
    *seventh_opened.ROWS,
    *seventh_sealed.ROWS,
    *eighth_opened.ROWS,
    *ninth_alike.ROWS,
    *tenth_alike.ROWS,
    *eleventh_opened.ROWS,
    *eleventh_sealed.ROWS,
    *eleventh_alike.ROWS,
    *twelfth_opened.ROWS,
    *twelfth_sealed.ROWS,
    *thirteenth_opened.ROWS,
    *thirteenth_sealed.ROWS,
    *fourteenth_opened.ROWS,
    *fourteenth_sealed.ROWS,
    *fifteenth_opened.ROWS,
    *fifteenth_sealed.ROWS,
    *sixteenth_opened.ROWS,
    *sixteenth_sealed.ROWS,
    *seventeenth_opened.ROWS,
    *seventeenth_sealed.ROWS,
    *eighteenth_opened.ROWS,
    *eighteenth_sealed.ROWS,
    *twentieth_opened.ROWS,
)
