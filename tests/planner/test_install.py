"""The steps of generate install, whole: every platform and distribution, sound scripts, and what is refused with which reason."""

from __future__ import annotations

from functools import cache
from itertools import product

import install_hosts as hosts
import msgspec
import pytest
from install_plans import B200, H100, RTX4090, SCHEMA, SYSTEMS, V100, WISHES, bare, check_script, check_sound, keys, step, words

import platforms
import platforms_more
from conftest import HOSTS, load
from machines_libraries import with_libraries
from platforms_troubled import TROUBLED
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.install import InstallCommand, InstallFile, InstallOptions, Packages, PythonEnvironment
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.render import as_json
from torchtune_sys.render.generate.install import shell

PLATFORMS = {**platforms.PLATFORMS, **platforms_more.MORE, **TROUBLED}
RECORDED = ["healthy", *(f"typical/{path.stem}" for path in sorted((HOSTS / "typical").glob("*.json")))]


@cache
def platform(name: str) -> Snapshot:
    recording = with_libraries(PLATFORMS[name]())
    intent = Workload(**{key: tuple(v) if isinstance(v, list) else v for key, v in recording.get("intent", {}).items()})
    return engine.snapshot(RecordedHost(recording, name), intent, timeout_s=20)


@pytest.mark.sampled(28)
@pytest.mark.parametrize("name", [*PLATFORMS, *RECORDED])
def test_every_platform(name: str) -> None:
    """Nothing raises, the script is sound, and a refusal says why and what could be had."""
    seen = platform(name) if name in PLATFORMS else load(name)
    for wishes in WISHES[:1] if name not in ("healthy", "graviton", "aws-p5", "gb200-tray") else WISHES:
        found = plan(seen, wishes)
        check_sound(found)
        check_script(found)


@pytest.mark.sampled(14, 28)
@pytest.mark.parametrize(("os_id", "release"), SYSTEMS)
@pytest.mark.parametrize("card", [H100, B200, V100, RTX4090], ids=["H100", "B200", "V100", "RTX4090"])
def test_every_distribution(os_id: str, release: str, card: tuple[str, str, None]) -> None:
    found = plan(bare([card] * 8, os_id, release), InstallOptions())
    check_sound(found)
    check_script(found)
    assert found.driver is not None and found.driver.branch == 580
    assert found.driver.module == ("proprietary" if card is V100 else "open")
    assert keys(found).index("driver") < keys(found).index("hold") < keys(found).index("daemons") < keys(found).index("torch")
    assert step(found, "daemons").reboot
    on_board = card in (H100, B200)  # V100 SXM2 modules are linked in pairs
    assert on_board or "nvidia-fabricmanager" not in " ".join(words(found))
    if on_board and release and step(found, "driver").actions:
        told = " ".join(words(found, "driver"))
        assert "nvidia-fabricmanager" in told or step(found, "driver").by_hand
        assert ("nvlsm" in told) is (card is B200 and "nvidia-fabricmanager" in told)
    enabled = " ".join(words(found, "daemons"))  # what is not installed cannot be enabled
    assert ("nvidia-fabricmanager" in enabled) is ("nvidia-fabricmanager" in " ".join(words(found, "driver")))


@pytest.mark.parametrize(
    ("os_id", "release", "says"),
    [
        ("centos", "7", "ended on 2024-06-30"),
        ("ubuntu", "20.04", "ended on 2025-05-31; Ubuntu Pro"),
        ("debian", "11", "ended on 2026-08-31"),
        ("opensuse-leap", "15.6", "ended on 2026-04-30"),
        ("fedora", "40", "ended on"),
        ("opensuse-tumbleweed", "20261101", "not on record"),
        ("alpine", "3.20", "not on record"),
    ],
)
def test_ended_and_unknown_systems(os_id: str, release: str, says: str) -> None:
    found = plan(bare([H100], os_id, release), InstallOptions())
    refused = next(item for item in found.refused if item.blocked_by == ("system",))
    assert says in refused.reason and refused.way and found.wheel is None
    assert plan(bare([H100], os_id, release), InstallOptions(cpu=True)).wheel is not None
    others = {
        "centos": "(Rocky Linux 8 or 9 or 10)",
        "debian": "(Debian GNU/Linux 12 or 13)",
        "opensuse-leap": "(openSUSE Leap 16)",
    }
    assert others.get(os_id, "") in refused.way


def test_a_release_whose_updates_are_sold_gets_its_driver_and_a_note() -> None:
    found = plan(bare([H100], "sles", "15.6"), InstallOptions())
    assert not found.refused and any("ended on 2025-12-31; LTSS sells updates" in note for note in found.notes)
    assert not any("ended on" in note for note in plan(bare([H100], "sles", "15.7"), InstallOptions()).notes)


def test_why_the_wheel_is_not_pypis_own() -> None:
    assert "PyPI's torch 2.14.1+cu130 holds no code for sm_70" in step(plan(bare([V100]), InstallOptions()), "torch").why
    assert "PyPI" not in step(plan(bare([H100]), InstallOptions()), "torch").why
    assert "PyPI's build for x86_64 brings CUDA along" in step(plan(bare([H100]), InstallOptions(cpu=True)), "torch").why


def test_the_head_names_the_channel_that_torch_is_from() -> None:
    head = shell(plan(bare([H100]), InstallOptions(tool="conda"))).partition("set -euo")[0]
    assert "from conda-forge" in head and "from PyPI" not in head


def test_centos_7_gets_the_last_torch_for_its_glibc() -> None:
    """With a driver that runs, an old system still gets what it can."""
    seen = hosts.with_driver(
        hosts.with_gpus(hosts.healthy(), [("Tesla V100-SXM2-16GB", "1db1", (7, 0))]), "535.183.01", "proprietary"
    )
    seen = hosts.with_python(seen, "cp310", "2.17")
    os = Os(id="centos", id_like=("rhel",), version="7", pretty_name="CentOS Linux 7 (Core)", codename="")
    found = plan(msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os, glibc="2.17")), InstallOptions())
    assert found.wheel is not None and found.wheel.local == "2.6.0+cu124" and not found.refused
    assert any("ended on 2024-06-30: it gets no security update" in note for note in found.notes)
    refused = plan(
        msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os, glibc="2.17")), InstallOptions(torch="2.7")
    ).refused
    assert refused[0].blocked_by == ("glibc",) and "2.6.0+cu124" in refused[0].newest


@pytest.mark.parametrize(
    ("os_id", "says"),
    [
        ("flatcar", "nvidia.service"),
        ("cos", "cos-extensions"),
        ("talos", "talosctl"),
        ("nixos", "nixos-rebuild"),
        ("sl-micro", "transactional-update pkg install"),
    ],
)
def test_a_system_that_installs_no_packages_says_how_it_gets_a_driver(os_id: str, says: str) -> None:
    found = plan(bare([H100], os_id, "1"), InstallOptions())
    assert found.driver is None and not any("driver" in key for key in keys(found))
    assert any(item.key == "driver" and item.blocked_by == ("owner",) and says in item.way for item in found.refused)


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        (
            "pip",
            ".venv/bin/python -I -m pip install torch==2.14.1 torchvision>=0.29.1 --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            "uv",
            "uv pip install --python .venv/bin/python torch==2.14.1 torchvision>=0.29.1 --index-url https://download.pytorch.org/whl/cu126",
        ),
        (
            "conda",
            "conda create --yes --prefix .venv --override-channels --channel conda-forge python=3.12 pytorch-gpu=2.14 cuda-version<13",
        ),
        ("pixi", "pixi install --manifest-path .venv/pixi.toml"),
    ],
)
def test_the_tools(tool: str, line: str) -> None:
    seen = hosts.with_driver(hosts.with_gpus(hosts.healthy(), [("NVIDIA L40S", "26b9", (8, 9))]), "570.124.06")
    found = plan(hosts.with_python(seen, "cp312", "2.39"), InstallOptions(tool=tool))
    assert words(found, "torch")[-1] == line
    check_script(found)


def test_torch_that_runs_here_is_left_alone() -> None:
    found = plan(hosts.healthy(), InstallOptions())
    assert found.wheel is None and "torch" not in keys(found) and any("2.11.0" in note for note in found.notes)
    other = plan(hosts.healthy(), InstallOptions(torch="2.15"))
    assert other.wheel is not None and other.wheel.local == "2.15.0+cu132"


def test_no_host_of_this_machine_is_named() -> None:
    """Public hosts alone."""
    allowed = {
        "developer.download.nvidia.com",
        "nvidia.github.io",
        "download.pytorch.org",
        "dl.fedoraproject.org",
        "deb.debian.org",
    }
    for (os_id, release), wishes in product(SYSTEMS, WISHES):
        found = plan(bare([H100, H100], os_id, release), wishes)
        lines = words(found) + [action.text for item in found.steps for action in item.actions if isinstance(action, InstallFile)]
        named = {word.split("/")[2] for line in lines for word in line.split() if "://" in word and "file:///" not in word}
        assert named <= allowed, named


def test_packages_and_environments_are_told_from_commands() -> None:
    """Another renderer (an image, a script that goes on after a reboot) does them in its own way, and can ask whether they are done."""
    for (os_id, release), wishes in product(SYSTEMS, WISHES):
        found = plan(bare([H100, H100], os_id, release), wishes)
        actions = [action for item in found.steps for action in item.actions]
        installs = {"install", "--sync", "venv", "pip"}
        for action in actions:
            if isinstance(action, InstallCommand) and action.words[0] in ("env", "apt-get", "dnf", "zypper", "pacman", "uv"):
                assert not installs & set(action.words), action
        assert {action.manager for action in actions if isinstance(action, Packages)} <= {manager(os_id)}
        for action in actions:
            if isinstance(action, PythonEnvironment):
                assert found.wheel is not None and action.local == found.wheel.local
                assert action.specifiers[0] == f"torch=={found.wheel.torch}" and action.index == found.wheel.index


def manager(os_id: str) -> str:
    return {"ubuntu": "apt", "debian": "apt", "sles": "zypper", "opensuse-leap": "zypper", "arch": "pacman"}.get(os_id, "dnf")


def test_what_is_not_in_the_schema_is_not_valid() -> None:
    found = msgspec.json.decode(as_json.install(plan(bare([H100], "debian", "12"), InstallOptions())))
    found["install"]["steps"][0]["actions"][0]["type"] = "magic"
    assert not SCHEMA.is_valid(found)


def test_actions_in_json_are_told_by_their_type() -> None:
    found = msgspec.json.decode(as_json.install(plan(bare([H100], "debian", "12"), InstallOptions())))
    steps = found["install"]["steps"]
    kinds = {action["type"] for item in steps for action in item["actions"]}
    assert kinds == {"command", "file", "packages", "environment"}
    (driver,) = [item for item in steps if item["key"] == "driver"]
    assert driver["actions"][0] == {"type": "packages", "manager": "apt", "names": ["nvidia-driver-pinning-580"]}
