"""Memory modules, clocks and heat."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge, load
from torchtune_sys.formats.smbios import memory_devices
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.hardware.probe import parse_tracking

ANY = st.one_of(st.binary(max_size=300), st.binary(max_size=60).map(lambda tail: bytes((17, 0x5C)) + tail * 3 + b"\0\0"))


def module(locator: str, size: int, *, extended: int = 0, rated: int = 4800, configured: int = 4800, wide: int = 0) -> bytes:
    """A memory device of SMBIOS 3.3 (DSP0134 7.18): offsets 0x0C size, 0x10 locator, 0x11 bank, 0x15 and 0x20 speeds, 0x1C extended size."""
    area = bytearray(0x5C)
    struct.pack_into("<BBH", area, 0, 17, 0x5C, 0x1100)
    struct.pack_into("<HHH", area, 8, 80, 64, size)
    area[0x10], area[0x11] = 1, 2
    struct.pack_into("<H", area, 0x15, rated)
    struct.pack_into("<I", area, 0x1C, extended)
    struct.pack_into("<H", area, 0x20, configured)
    struct.pack_into("<II", area, 0x54, wide, wide)
    return bytes(area) + locator.encode() + b"\0" + b"P0 CHANNEL A\0\0"


END = struct.pack("<BBH", 127, 4, 0x7F00) + b"\0\0"
TABLE = module("DIMM_A1", 0x7FFF, extended=65536) + module("DIMM_B1", 0, rated=0, configured=0) + module("DIMM_C1", 16384) + END


def test_sizes_and_speeds_of_a_table() -> None:
    large, empty, small = memory_devices(TABLE)
    assert (large["locator"], large["bank"], large["size_mib"]) == ("DIMM_A1", "P0 CHANNEL A", 65536)
    assert (empty["size_mib"], empty["rated_mts"], empty["configured_mts"]) == (0, None, None)
    assert (small["size_mib"], small["configured_mts"]) == (16384, 4800)


def test_speeds_beyond_16_bits_are_in_the_extended_fields() -> None:
    fast = memory_devices(module("X", 8, rated=0xFFFF, configured=0xFFFF, wide=70000) + END)[0]
    assert (fast["rated_mts"], fast["configured_mts"]) == (70000, 70000)


def test_size_in_kib_and_size_unknown() -> None:
    assert memory_devices(module("X", 0x8000 | 2048) + END)[0]["size_mib"] == 2
    assert memory_devices(module("X", 0xFFFF) + END)[0]["size_mib"] == 0


@pytest.mark.parametrize("technology", range(9))
def test_persistent_memory_is_no_module_of_the_main_memory(technology: int) -> None:
    """DSP0134 7.18.6: 3 is DRAM, 4 to 7 are kinds of persistent memory, whose sizes are others."""
    area = bytearray(module("X", 8))
    area[0x28] = technology
    assert bool(memory_devices(bytes(area) + END)) is (technology not in (4, 5, 6, 7))


@given(ANY)
def test_any_bytes_of_a_table(noise: bytes) -> None:
    assert isinstance(memory_devices(noise), list)
    assert memory_devices(module("DIMM_A1", 1024) + noise)[0]["locator"] == "DIMM_A1"


@pytest.mark.skipif(not shutil.which("dmidecode"), reason="dmidecode is not installed")
def test_agrees_with_dmidecode(tmp_path: Path) -> None:
    entry = bytearray(b"_SM3_\0\x18\x03\x03\0\x01\0" + struct.pack("<IQ", len(TABLE), 32))
    entry[5] = -sum(entry) & 0xFF
    dump = tmp_path / "dump.bin"
    dump.write_bytes(bytes(entry).ljust(32, b"\0") + TABLE)
    text = subprocess.run(
        ["dmidecode", "--from-dump", str(dump), "-t", "17"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    assert [line.split(": ")[1] for line in text.splitlines() if line.startswith("\tSize:")] == [
        "64 GB",
        "No Module Installed",
        "16 GB",
    ]


def test_the_daemon_that_says_nothing_is_unknown_and_still_good() -> None:
    seen = load("healthy")
    assert not isinstance(seen.hardware, Missing)
    assert seen.hardware.clock_daemon == "chronyd"
    found = seen.hardware.clock_synchronised
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED
    assert judge(seen)["clock-not-synchronised"].verdict is Verdict.PASS


@pytest.mark.parametrize("value", ["", "x", "-99999999", "9" * 400, "\0", "nan"])
def test_sensors_that_answer_nonsense(value: str) -> None:
    zone = "/sys/class/thermal/thermal_zone0"
    count = "/sys/devices/system/cpu/cpu63/thermal_throttle/package_throttle_count"
    seen = load("healthy", files={f"{zone}/temp": value, f"{zone}/trip_point_0_temp": value, count: value})
    results = judge(seen)
    assert "acpitz" not in {evidence.subject for evidence in results["temperature-near-limit"].evidence}
    assert not isinstance(seen.hardware, Missing)


@pytest.mark.parametrize("answer", [3, [], {}, {"memory_devices": 1}, {"memory_devices": [{"locator": 1}]}, "text"])
def test_a_wrong_answer_about_memory_is_unknown(answer: object) -> None:
    assert judge(load("healthy", answers={"smbios": answer}))["memory-modules-uneven"].verdict is Verdict.UNKNOWN


def test_a_virtual_machine_has_no_modules_to_judge() -> None:
    seen = load("healthy")
    assert not isinstance(seen.system, Missing)
    guest = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, hypervisor="kvm"))
    assert judge(guest)["memory-modules-uneven"].verdict is Verdict.NA


def test_an_uncorrected_error_is_told_once() -> None:
    both = load("memory-uncorrected-counted.fail")
    told = judge(both)
    assert told["memory-uncorrected-counted"].verdict is Verdict.FAIL
    assert told["memory-errors-counted"].verdict is Verdict.PASS
    logged = load("memory-uncorrected-errors.fail")
    told = judge(msgspec.structs.replace(both, kernel=logged.kernel))
    assert told["memory-uncorrected-errors"].verdict is Verdict.FAIL
    assert told["memory-uncorrected-counted"].verdict is not Verdict.FAIL
    assert "see memory-uncorrected-errors" in [item.wanted for item in told["memory-uncorrected-counted"].evidence]


def test_the_clock_is_a_warning_only_among_several_hosts() -> None:
    alone, among = judge(load("clock-not-synchronised.fail")), judge(load("clock-of-node-not-synchronised.fail"))
    assert alone["clock-of-node-not-synchronised"].verdict is Verdict.NA
    assert among["clock-not-synchronised"].verdict is Verdict.NA
    assert among["clock-of-node-not-synchronised"].verdict is Verdict.FAIL


@given(st.text(max_size=200))
def test_any_answer_of_chrony(text: str) -> None:
    assert parse_tracking(text) in (None, True, False)
    assert parse_tracking("," * 13 + text.replace(",", "")) in (None, True, False)


def test_chips_of_the_firmware_are_no_memory_modules() -> None:
    flash = bytearray(module("BIOS FLASH", 16))
    flash[0x12] = 0x09
    stick = bytearray(module("DIMM_A1", 16))
    stick[0x0E], stick[0x12] = 0x0D, 0x1A
    assert [(one["locator"], one["form"]) for one in memory_devices(bytes(flash + stick) + END)] == [("DIMM_A1", "SODIMM")]


def _sensors(**files: str | None) -> dict[str, float]:
    seen = load("healthy", files={f"/sys/class/hwmon/{path}": text for path, text in files.items()})
    assert not isinstance(seen.hardware, Missing) and not isinstance(seen.hardware.zones, Missing)
    return {zone.name: zone.limit_celsius for zone in seen.hardware.zones}


def test_drives_and_network_cards_have_limits_of_their_own() -> None:
    assert _sensors() == {"acpitz": 105.0, "nvme0": 84.85, "0000:1a:00.0": 105.0}


@pytest.mark.parametrize("limit", ["65261850\n", "-273150\n", "0\n", "x\n", None])
def test_a_drive_that_names_no_limit_is_not_judged(limit: str | None) -> None:
    assert "nvme0" not in _sensors(**{"hwmon1/temp1_crit": limit})


def test_a_processors_sensor_is_left_to_its_throttle_counter() -> None:
    assert "nvme0" not in _sensors(**{"hwmon1/name": "coretemp\n"})


def _memory(*fitted: int, slots: int = 32, letters: str = "ABCDEFGH") -> dict[str, object]:
    """Slots of two processors, two on each channel; those numbered are fitted."""
    names = [f"P{cpu}-DIMM{letter}{n}" for cpu in (1, 2) for letter in letters for n in (1, 2)][:slots]
    return {
        "smbios": {
            "memory_devices": [
                {"locator": name, "bank": "", "size_mib": 65536 * (number in fitted), "form": "DIMM"}
                for number, name in enumerate(names)
            ]
        }
    }


def test_channels_by_count_by_name_and_by_controller() -> None:
    def told(**overlay: object) -> tuple[Verdict, str]:
        found = judge(load("healthy", **overlay))["memory-channels-empty"]
        return found.verdict, found.evidence[0].seen if found.evidence else str(found.why_unknown)

    every_other = range(0, 32, 2)
    assert told(answers=_memory(*every_other))[0] is Verdict.PASS
    assert told(answers=_memory(*range(15))) == (Verdict.FAIL, "15 modules: at most 15 of 16 (8 on each of 2 processors)")
    assert told(answers=_memory(*range(16))) == (Verdict.FAIL, "8 of 16 (8 on each of 2 processors), with 16 modules")
    assert told(answers=_memory(*range(8), slots=8))[0] is Verdict.PASS  # the board has no more slots
    numbered = {
        "smbios": {
            "memory_devices": [
                {"locator": f"DIMM {n}", "bank": "", "size_mib": 65536 * (n < 16), "form": "DIMM"} for n in range(32)
            ]
        }
    }
    assert told(answers=numbered)[0] is Verdict.UNKNOWN
    mc = "/sys/devices/system/edac/mc"
    by_kernel = {f"{mc}/mc{n}/rank{r}/dimm_location": f"csrow 0 channel {r}\n" for n in (0, 1) for r in range(8)}
    assert told(answers=numbered, files=by_kernel)[0] is Verdict.PASS
    by_kernel[f"{mc}/mc1/rank7/dimm_location"] = "csrow 1 channel 6\n"
    assert told(answers=numbered, files=by_kernel) == (Verdict.FAIL, "15 of 16 (8 on each of 2 processors), with 16 modules")
    assert told(answers=numbered, files={**by_kernel, f"{mc}/mc1/rank7/dimm_location": "memory 3\n"})[0] is Verdict.UNKNOWN


def test_missing_modules_are_told_of_once() -> None:
    results = judge(load("healthy", answers=_memory(*range(15))))
    assert results["memory-channels-empty"].verdict is Verdict.FAIL
    assert results["memory-modules-uneven"].verdict is Verdict.NA
    assert results["memory-modules-uneven"].note == "memory-channels-empty tells of it"


def test_soldered_memory_has_no_empty_channels() -> None:
    chips = {"smbios": {"memory_devices": [{"locator": "A", "bank": "", "size_mib": 65536, "form": "soldered"}] * 2}}
    assert judge(load("healthy", answers=chips))["memory-channels-empty"].verdict is Verdict.NA


def test_versions_of_firmware_and_microcode_are_read() -> None:
    cpus = ["processor\t: 0", "microcode\t: 0x2b000590", "", "processor\t: 1", "microcode\t: 0x2b000639", ""]
    seen = load("healthy", files={"/proc/cpuinfo": cpus, "/sys/class/dmi/id/bios_version": "2.14.2 \n"}).hardware
    assert not isinstance(seen, Missing)
    assert (seen.bios, seen.microcode) == ("2.14.2", "0x2b000590, 0x2b000639")
    arm = load("typical/gh200").hardware
    assert not isinstance(arm, Missing) and isinstance(arm.microcode, Missing) and arm.microcode.why is Why.ABSENT
