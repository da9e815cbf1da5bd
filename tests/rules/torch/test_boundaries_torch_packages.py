"""The libraries that torch asks for, what hides what, and what was compiled against torch; each mark from both sides (torch_packages)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, lines, verdict
from torch_packages_hosts import BUILD, SITE, UNTOLD, host, item, torch

from torchtune_sys.model.facts.python import Distribution, LiveTorch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable
from torchtune_sys.rules.torch import packages

USER = "/home/ubuntu/.local/lib/python3.12/site-packages"


def asking(*requires: str) -> Distribution:
    return item("torch", "2.11.0", requires=requires)


def cuda_works(seen: Snapshot) -> Snapshot:
    told: dict[str, Any] = dict.fromkeys((field.name for field in msgspec.structs.fields(LiveTorch) if field.required), UNTOLD)
    return altered(seen, python__live=LiveTorch(**{**told, "version": "2.11.0", "cuda_available": True}))


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.4.0", "12.1", {"nvidia-nccl-cu12": "==2.20.5", "nvidia-cudnn-cu12": "==9.1.0.70", "triton": "==3.0.0"}),
        ("2.4.0+cu121", UNTOLD, {"nvidia-nccl-cu12": "==2.20.5", "nvidia-cudnn-cu12": "==9.1.0.70", "triton": "==3.0.0"}),
        ("2.14.1", "13.0", {"nvidia-nccl-cu13": "==2.30.7", "nvidia-cudnn-cu13": "==9.24.0.43", "triton": "~=3.8.0"}),
        ("1.13.1", "11.7", {"nvidia-cudnn-cu11": "==8.5.0.96"}),
        ("2.4.0+cu124", "12.4", None),  # of the other builds no table tells
        ("2.4.0.dev20240501", "12.1", None),
        ("2.4.0+own", UNTOLD, None),
        ("2.4.0+own", NOTHING, None),
    ],
)
def test_what_a_torch_asks_for_of_which_the_version_alone_is_known(
    healthy: Snapshot, version: str, cuda: Any, expected: dict[str, str] | None
) -> None:
    """Requires-Dist of the wheels on PyPI."""
    build = torch(version, cuda, source="report", location="pip")
    seen = host(healthy, build, item("torch", version, "pip"))
    if expected is None:
        with pytest.raises(NotApplicable):
            packages.pins(seen, build)
    else:
        assert {wanted.name: wanted.specifier for wanted in packages.pins(seen, build)} == expected


@pytest.mark.parametrize(
    ("pin", "specifier"),
    [
        ("3.0.0", "==3.0.0"),
        ("~=3.9.0", "~=3.9.0"),
        (">=0.29.1", ">=0.29.1"),
        ("<14,>=13", "<14,>=13"),
        ("!=2", "!=2"),
        ("==1", "==1"),
    ],
)
def test_a_pin_without_operator_is_exact(pin: str, specifier: str) -> None:
    assert packages.as_specifier(pin) == specifier


@pytest.mark.parametrize(
    ("location", "source", "listed", "expected"),
    [
        (f"{SITE}/torch", "files", SITE, FAIL),
        ("/usr/lib/python3/dist-packages/torch", "files", SITE, NA),  # another one is imported
        ("/usr/lib/python3/dist-packages/torch", "live", SITE, NA),
        ("/anywhere", "report", "pip", FAIL),
        (f"{SITE}/torch", "files", None, NA),
        ("/anywhere", "report", None, NA),
    ],
)
def test_the_metadata_of_the_torch_that_is_imported(
    healthy: Snapshot, location: str, source: str, listed: str | None, expected: Verdict
) -> None:
    build = torch("2.11.0+cu130", "13.0", location=location, source=source)
    own = () if listed is None else (item("torch", "2.11.0", listed, requires=("nvidia-cudnn-cu13==9.19.0.56",)),)
    assert verdict(host(healthy, build, *own), "wheel-libs-not-found") is expected


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("", FAIL),
        ('platform_system == "Linux"', FAIL),
        ('platform_system == "Windows"', PASS),
        ('sys_platform == "linux"', FAIL),
        ('sys_platform == "win32"', PASS),
        ('os_name == "posix"', FAIL),
        ('os_name == "nt"', PASS),
        ('platform_machine == "x86_64"', FAIL),
        ('platform_machine == "aarch64"', PASS),
        ('python_version == "3.12"', FAIL),
        ('python_version < "3.12"', PASS),
        ('python_full_version == "3.12.3"', FAIL),
        ('python_full_version < "3.12.3"', PASS),
        ('implementation_name == "cpython"', FAIL),
        ('platform_python_implementation == "CPython"', FAIL),
        ('platform_python_implementation != "CPython"', PASS),
        ('extra == "x"', PASS),
    ],
)
def test_a_library_is_asked_for_where_its_marker_holds(healthy: Snapshot, marker: str, expected: Verdict) -> None:
    """The variables of PEP 508 as CPython 3.12.3 on Linux has them."""
    seen = host(healthy, BUILD, asking(f"nvidia-cudnn-cu13==9.19.0.56; {marker}"))
    assert verdict(seen, "wheel-libs-not-found") is expected


@pytest.mark.parametrize(("machine", "expected"), [("aarch64", PASS), ("x86_64", FAIL), (UNTOLD, FAIL)])
def test_a_machine_that_nobody_told_is_the_usual_one(healthy: Snapshot, machine: Any, expected: Verdict) -> None:
    seen = host(healthy, BUILD, asking('nvidia-cudnn-cu13==9.19.0.56; platform_machine == "x86_64"'))
    seen = altered(seen, python__machine=machine, system__machine=UNTOLD)
    assert verdict(seen, "wheel-libs-not-found") is expected


REQUIRES = ("filelock==3", "nvidia-nccl-cu13==2.28.9", "nvidia-cufft==12.0", "nvidia-cudnn-cu13==9.19", "triton==3.6.0")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, {}),
        ({"nvidia-nccl-cu13": "2.27.3"}, {"nccl": FAIL}),
        ({"nvidia-nccl-cu13": "2.29.7"}, {}),
        ({"nvidia-nccl-cu13": "3.0.1"}, {"nccl": FAIL}),
        ({"nvidia-cudnn-cu13": "9.20"}, {}),
        ({"nvidia-cudnn-cu13": "9.10"}, {"differs": ["nvidia-cudnn-cu13"]}),
        ({"nvidia-cufft": "11.0", "nvidia-cudnn-cu13": "9.10"}, {"differs": ["nvidia-cufft", "nvidia-cudnn-cu13"]}),
        ({"nvidia-cufft": None, "nvidia-cudnn-cu13": "9.10"}, {"missing": ["nvidia-cufft"], "differs": ["nvidia-cudnn-cu13"]}),
        ({"nvidia-cufft": None, "nvidia-cudnn-cu13": None}, {"missing": ["nvidia-cufft", "nvidia-cudnn-cu13"]}),
        ({"triton": "3.5.1"}, {"triton": FAIL}),
        ({"triton": None}, {"triton": None}),
        ({"nvidia-nccl-cu13": None}, {"missing": ["nvidia-nccl-cu13"], "nccl": None}),
        ({"filelock": None}, {}),  # no library of NVIDIA's
    ],
)
def test_each_pin_has_its_rule(healthy: Snapshot, there: dict[str, Any], expected: dict[str, Any]) -> None:
    wanted = {name: version for name, _, version in (line.partition("==") for line in REQUIRES)}
    items = [item(name, version) for name, version in {**wanted, **there}.items() if version is not None]
    seen = host(healthy, BUILD, asking(*REQUIRES), *items)
    nccl, triton = expected.get("nccl", PASS), expected.get("triton", PASS)
    assert lines(seen, "nccl-wheel-version-overridden") == ([("nvidia-nccl-cu13", nccl)] if nccl else [])
    assert lines(seen, "triton-version-differs") == ([("triton", triton)] if triton else [])
    assert lines(seen, "nvidia-wheel-version-differs") == [(name, FAIL) for name in expected.get("differs", [])]
    assert lines(seen, "wheel-libs-not-found") == [(name, FAIL) for name in expected.get("missing", [])]
    assert verdict(cuda_works(seen), "wheel-libs-not-found") is NA


@pytest.mark.parametrize(
    ("there", "differs"),
    [
        ({"sympy": "1.14.0", "typing-extensions": "4.16.0"}, []),
        ({"sympy": "1.12"}, ["sympy"]),
        ({"sympy": "1.12", "typing-extensions": "4.5.0"}, ["typing-extensions", "sympy"]),
        ({"setuptools": "84.0"}, []),  # newer than torch allows: it imports and trains
        ({}, []),  # modules may be there without metadata
    ],
)
@pytest.mark.parametrize("cuda", ["13.0", NOTHING])
def test_packages_that_are_older_than_torch_asks_for(
    healthy: Snapshot, there: dict[str, str], differs: list[str], cuda: Any
) -> None:
    asked = asking("typing-extensions>=4.10.0", "setuptools<82", "sympy>=1.13.3", 'sympy==9.9; extra == "opt"')
    seen = host(
        healthy, msgspec.structs.replace(BUILD, cuda=cuda), asked, *(item(name, version) for name, version in there.items())
    )
    assert lines(seen, "nvidia-wheel-version-differs") == [(name, FAIL) for name in differs]


def test_a_torch_that_asks_for_nothing_lacks_nothing(healthy: Snapshot) -> None:
    assert verdict(host(healthy, BUILD, asking()), "wheel-libs-not-found") is NA
    assert verdict(host(healthy, torch("2.11.0+cpu"), asking(*REQUIRES)), "wheel-libs-not-found") is NA


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory", FAIL),
        ("ImportError: libnvshmem_host.so.3: cannot open shared object file: No such file or directory", FAIL),
        ("ImportError: libcufile.so.0: cannot open shared object file: No such file or directory", FAIL),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", PASS),  # another package's
        ("libcusparseLt.so.0: undefined symbol: cusparseLtInit", PASS),
        ("", PASS),
    ],
)
def test_a_library_that_torch_alone_looks_for(healthy: Snapshot, line: str, expected: Verdict) -> None:
    assert verdict(altered(healthy, python__complaints=("another line", line)), "wheel-libs-not-found") is expected


@pytest.mark.parametrize("name", ["nvidia-nccl", "nvidia-cudnn", "nvidia-nvshmem", "nvidia-cusparselt"])
@pytest.mark.parametrize(
    ("cuda", "there", "expected"),
    [
        ("13.0", {"cu12": "1.2", "cu13": "1.3"}, ["cu13"]),
        ("13.0", {"cu12": "1.3", "cu13": "1.3"}, []),
        ("13.0", {"cu12": "1.4", "cu13": "1.3"}, []),
        ("12.8", {"cu12": "1.3", "cu13": "1.2"}, ["cu12"]),
        ("12.8", {"cu12": "1.2", "cu13": "1.3"}, []),
        ("13.0.2", {"cu12": "1.3", "cu13": "1.2", "cu11": "1.1"}, ["cu13"]),  # a build that names the patch level too
        ("12.8", {"cu11": "1.1", "cu12": "1.2"}, []),  # these two were seen working
        ("11.8", {"cu11": "1.2", "cu12": "1.1"}, []),
        ("13.0", {"cu11": "1.1", "cu12": "1.2", "cu13": "1.3"}, ["cu13", "cu13"]),
        ("12.8", {"cu11": "1.1", "cu12": "1.3", "cu13": "1.2"}, ["cu12"]),
        ("13.0", {"cu11": "1.1", "cu12": "1.2"}, []),  # torch's own is not there: another rule's affair
        (UNTOLD, {"cu12": "1.2", "cu13": "1.3"}, ["cu13"]),  # the newest stands for torch's
        (UNTOLD, {"cu12": "1.3", "cu13": "1.2"}, []),
        (None, {"cu12": "1.2", "cu13": "1.3"}, ["cu13"]),
        ("13.0", {}, []),
    ],
)
def test_two_packages_that_write_the_same_files(
    healthy: Snapshot, name: str, cuda: Any, there: dict[str, str], expected: list[str]
) -> None:
    build = NOTHING if cuda is None else torch("2.11.0a0+own", cuda)
    seen = host(healthy, build, *(item(f"{name}-{suffix}", version) for suffix, version in there.items()))
    found = lines(seen, "mixed-nvidia-cuda-wheels")
    assert [subject.split()[0].rpartition("-")[2] for subject, mark in found if mark is FAIL] == expected
    assert verdict(seen, "mixed-nvidia-cuda-wheels") is (FAIL if expected else PASS)
    assert verdict(cuda_works(seen), "mixed-nvidia-cuda-wheels") is NA


def test_only_the_same_directory_holds_the_same_files(healthy: Snapshot) -> None:
    older, own = item("nvidia-nccl-cu12", "2.27.3"), item("nvidia-nccl-cu13", "2.28.9")
    assert verdict(host(healthy, BUILD, older, own), "mixed-nvidia-cuda-wheels") is FAIL
    elsewhere = item("nvidia-nccl-cu12", "2.27.3", USER)
    assert verdict(host(healthy, BUILD, elsewhere, own), "mixed-nvidia-cuda-wheels") is PASS
    # a second copy further down the path is never imported, and changes nothing
    behind = item("nvidia-nccl-cu13", "2.28.9", "/usr/lib/python3/dist-packages")
    assert verdict(host(healthy, BUILD, older, own, behind), "mixed-nvidia-cuda-wheels") is FAIL
    of_conda = item("nvidia-nccl-cu12", "2.27.3", build="h5b3f1a2_0")
    assert verdict(host(healthy, BUILD, of_conda, own), "mixed-nvidia-cuda-wheels") is PASS


JUDGED = ("torch", "torchvision", "torchaudio", "triton", "numpy")


@pytest.mark.parametrize("name", [*JUDGED, "pillow"])
@pytest.mark.parametrize(
    ("second", "twice"),
    [
        ({"version": "1.1", "location": USER}, True),
        ({"version": "1.0", "location": USER}, False),
        ({"version": "1.1"}, True),  # two dist-info directories in one place
        ({"version": "1.0"}, True),
        ({"version": "1.1", "location": "pip"}, False),
        ({"version": "1.1", "location": "conda"}, False),
        ({"version": "1.1", "location": USER, "build": "py312_0"}, False),
        (None, False),
    ],
)
def test_a_package_twice(healthy: Snapshot, name: str, second: Any, twice: bool) -> None:
    items = (item(name, "1.0"), *(() if second is None else (item(name, **second),)))
    expected = [(name, FAIL)] if twice and name in JUDGED else []
    assert lines(host(healthy, BUILD, item("filelock"), *items), "torch-installed-twice") == expected


@pytest.mark.parametrize("name", [*JUDGED, "pillow"])
@pytest.mark.parametrize(
    ("other", "hidden"),
    [
        ({"location": SITE}, True),
        ({"location": USER}, False),
        ({"location": "pip"}, False),
        ({"location": "conda"}, False),
        ({"location": SITE, "build": "py312_0"}, False),
        (None, False),
    ],
)
def test_what_the_users_site_hides(healthy: Snapshot, name: str, other: Any, hidden: bool) -> None:
    items = (item("filelock"), item(name, "1.1", USER), *(() if other is None else (item(name, **other),)))
    seen = altered(host(healthy, BUILD, *items), python__user_site=USER)
    assert lines(seen, "user-site-shadows-environment") == ([(name, FAIL)] if hidden and name in JUDGED else [])
    assert verdict(altered(seen, python__user_site=NOTHING), "user-site-shadows-environment") is NA


@pytest.mark.parametrize(
    ("name", "behind", "told"),
    [
        ("numpy", "/usr/lib/python3/dist-packages", False),  # apt's, behind what pip installed
        ("numpy", "/usr/lib64/python3.12/site-packages", False),
        ("numpy", "/usr/local/lib/python3.12/dist-packages", True),
        ("torch", "/usr/lib/python3/dist-packages", True),
    ],
)
def test_a_distributions_numpy_behind_pips_is_by_design(healthy: Snapshot, name: str, behind: str, told: bool) -> None:
    seen = host(healthy, BUILD, item("filelock"), item(name, "1.0"), item(name, "1.1", behind))
    assert lines(seen, "torch-installed-twice") == ([(name, FAIL)] if told else [])


def test_a_distributions_package_before_another_one_is_told(healthy: Snapshot) -> None:
    of_apt = item("numpy", "1.21.5", "/usr/lib/python3/dist-packages")
    assert lines(host(healthy, BUILD, of_apt, item("numpy", "2.3.0", USER)), "torch-installed-twice") == [("numpy", FAIL)]
    again = item("numpy", "1.21.6", "/usr/lib/python3/dist-packages")
    assert lines(host(healthy, BUILD, of_apt, again), "torch-installed-twice") == [("numpy", FAIL)]


def test_the_users_site_is_the_environment_where_torch_is_nowhere_else(healthy: Snapshot) -> None:
    """PYTHONNOUSERSITE=1 would leave no torch: pip install --user torch, beside apt's python3-numpy."""
    rule_id, of_apt = "user-site-shadows-environment", item("numpy", "1.21.5", "/usr/lib/python3/dist-packages")
    here = (of_apt, item("numpy", "1.26.4", USER), item("torch", "2.3.0", USER))
    assert verdict(altered(host(healthy, BUILD, *here), python__user_site=USER), rule_id) is NA
    both = altered(host(healthy, BUILD, *here, item("torch", "2.3.0")), python__user_site=USER)
    assert lines(both, rule_id) == [("torch", FAIL), ("numpy", FAIL)]


def test_what_is_in_the_users_site_alone_hides_nothing(healthy: Snapshot) -> None:
    seen = altered(host(healthy, BUILD, item("numpy"), item("torch", "1.0", USER)), python__user_site=USER)
    assert lines(seen, "user-site-shadows-environment") == []


@pytest.mark.parametrize(
    "rule_id",
    [
        "mixed-nvidia-cuda-wheels",
        "nvidia-wheel-version-differs",
        "torch-installed-twice",
        "torch-torchvision-mismatch",
        "extension-torch-abi-mismatch",
    ],
)
def test_packages_that_were_not_seen(healthy: Snapshot, rule_id: str) -> None:
    assert verdict(altered(healthy, python__distributions=DENIED), rule_id) is UNKNOWN
    assert verdict(altered(healthy, python=DENIED), rule_id) is UNKNOWN


@pytest.mark.parametrize(
    ("cuda", "there", "expected"),
    [
        ("12.8", {"cu11": ("1.1", ()), "cu12": ("1.2", ("nvidia/x/lib/x.so.1",))}, FAIL),  # CUDA 11's came last
        ("12.8", {"cu11": ("1.1", ("nvidia/x/lib/x.so.1",)), "cu12": ("1.2", ())}, PASS),  # torch's own lie there
        ("13.0", {"cu12": ("1.3", ()), "cu13": ("1.2", ("nvidia/x/lib/x.so.1",))}, FAIL),  # a newer stray one
        ("13.0", {"cu12": ("1.1", ("nvidia/x/lib/x.so.1",)), "cu13": ("1.2", ())}, PASS),  # an older one that was overwritten
    ],
)
def test_the_sizes_of_the_files_tell_whose_they_are(
    healthy: Snapshot, cuda: str, there: dict[str, Any], expected: Verdict
) -> None:
    packages = [
        item(f"nvidia-nccl-{suffix}", version, weighed=True, altered=altered) for suffix, (version, altered) in there.items()
    ]
    seen = host(healthy, torch("2.11.0a0+own", cuda), *packages)
    assert verdict(seen, "mixed-nvidia-cuda-wheels") is expected
    assert verdict(seen, "nvidia-wheel-files-altered") is PASS  # what is in place is what one of them brought
    assert verdict(cuda_works(seen), "nvidia-wheel-files-altered") is NA
    broken = host(
        healthy, torch("2.11.0a0+own", cuda), item("nvidia-nccl-cu13", "1.2", weighed=True, altered=("nvidia/x/lib/x.so.1",))
    )
    assert verdict(broken, "nvidia-wheel-files-altered") is FAIL
