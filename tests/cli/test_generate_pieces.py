"""``generate systemd``, ``tuned`` and ``kernel-args`` as a person calls them."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from driven import HOSTS, run


def test_drop_ins_are_written_below_a_folder_and_foreign_ones_left(tmp_path: Path) -> None:
    arguments = ("generate", "systemd", "--from", str(HOSTS / "service-memlock-too-low.fail.json"), "--output-dir", str(tmp_path))
    done = run(*arguments, "--unit", "train", "--defaults")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    unit = tmp_path / "etc/systemd/system/train.service.d/90-torchtune-sys.conf"
    assert "\nLimitMEMLOCK=infinity\n" in unit.read_text() and 'Environment="OMP_NUM_THREADS=' in unit.read_text()
    manager = tmp_path / "etc/systemd/system.conf.d/90-torchtune-sys.conf"
    assert "\nDefaultLimitMEMLOCK=infinity\n" in manager.read_text()
    assert run(*arguments, "--unit", "train").returncode == 0
    unit.write_text("[Service]\n")
    refused = run(*arguments, "--unit", "train")
    assert refused.returncode == 4 and "not made by torchtune-sys" in refused.stderr and unit.read_text() == "[Service]\n"


def test_several_drop_ins_are_printed_below_their_paths() -> None:
    done = run("generate", "systemd", "--from", str(HOSTS / "logind-removes-ipc.fail.json"), "--unit", "train@.service")
    heads = [row for row in done.stdout.splitlines() if row.startswith("# /etc/systemd") and row.endswith(".conf")]
    assert heads == [
        "# /etc/systemd/logind.conf.d/90-torchtune-sys.conf",
        "# /etc/systemd/system/train@.service.d/90-torchtune-sys.conf",
    ]


@pytest.mark.parametrize("unit", ["a b", "../x", "$(reboot)"])
def test_a_unit_that_is_none(unit: str) -> None:
    done = run("generate", "systemd", "--from", str(HOSTS / "healthy.json"), "--unit", unit)
    assert done.returncode == 2 and "no name of a systemd unit" in done.stderr


def test_a_profile_on_top_of_the_one_that_is_named() -> None:
    done = run("generate", "tuned", "--from", str(HOSTS / "thp-never.fail.json"), "--include", "latency-performance")
    parsed = configparser.RawConfigParser()
    parsed.read_string(done.stdout)
    assert parsed["main"]["include"] == "latency-performance" and parsed["vm"]["transparent_hugepages"] == "madvise"
    assert "for /etc/tuned/torchtune-sys/tuned.conf" in done.stderr
    hostile = run("generate", "tuned", "--from", str(HOSTS / "thp-never.fail.json"), "--include", "a\n[script]")
    assert hostile.returncode == 2 and hostile.stdout == ""


def test_arguments_in_each_form() -> None:
    host = str(HOSTS / "nouveau-loaded.fail.json")
    assert run("generate", "kernel-args", "--from", host).stdout == "modprobe.blacklist=nouveau\n"
    for form in ("grub", "systemd-boot"):
        assert "modprobe.blacklist=nouveau" in run("generate", "kernel-args", "--from", host, "--format", form).stdout
    nothing = run("generate", "kernel-args", "--from", str(HOSTS / "healthy.json"))
    assert nothing.stdout == "" and "no kernel argument" in nothing.stderr and nothing.returncode == 0
