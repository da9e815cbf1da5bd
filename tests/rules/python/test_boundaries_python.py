"""Which interpreters can hold a torch, and which C library its wheels ask for, each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import driver, python, torch

NOTHING = Missing(Why.ABSENT, "test")
DENIED = Missing(Why.DENIED, "test")
BY_ID = {rule.id: rule for rule in (*python.RULES, *torch.RULES, *driver.RULES)}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
SAID = "ERROR: No matching distribution found for torch"


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def verdict(seen: Snapshot, rule_id: str) -> Verdict:
    return engine.judge(seen, (BY_ID[rule_id],))[0].verdict


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, PASS),
        ({"implementation": ""}, PASS),  # a report that does not tell
        ({"implementation": "pypy"}, FAIL),
        ({"machine": ""}, PASS),
        ({"machine": "aarch64"}, PASS),
        ({"machine": "ppc64le"}, FAIL),
        ({"machine": "x86_64 (32-bit)"}, FAIL),
        ({"glibc": NOTHING}, FAIL),  # musl
        ({"glibc": DENIED}, PASS),
        ({"version": "3"}, PASS),  # too little to judge by
        ({"version": "3.12"}, PASS),
        ({"version": "3.2"}, FAIL),
        ({"version": "3.7.17"}, PASS),  # cp37m: torch 1.13
        ({"version": "3.13.1", "free_threaded": True}, PASS),
        ({"version": "3.11.9", "free_threaded": True}, FAIL),
        ({"version": DENIED}, UNKNOWN),
    ],
)
def test_a_wheel_for_this_interpreter(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    assert verdict(changed(healthy, "python", torch=NOTHING, **facts), "no-wheel-for-python") is expected


@pytest.mark.parametrize(
    ("version", "said", "expected"),
    [
        ("3.8.0", SAID, FAIL),
        ("3.12.2", SAID, FAIL),
        ("3.12.3", SAID, PASS),  # wheels had come by then: pip has another reason
        ("3.12", SAID, PASS),
        ("3.7.0", SAID, PASS),
        ("3.12.1", "ERROR: No matching distribution found for flash-attn", PASS),
    ],
)
def test_pip_found_nothing_for_a_new_python(healthy: Snapshot, version: str, said: str, expected: Verdict) -> None:
    seen = changed(healthy, "python", torch=NOTHING, version=version, complaints=(said,))
    assert verdict(seen, "no-wheel-for-python") is expected


@pytest.mark.parametrize(
    ("tags", "glibc", "expected"),
    [
        (("cp312-cp312-manylinux_2_28_x86_64",), "2.28", PASS),
        (("cp312-cp312-manylinux_2_28_x86_64",), "2.28.1", PASS),
        (("cp312-cp312-manylinux_2_28_x86_64",), "2.27", FAIL),
        (("cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_28_x86_64"), "2.17", PASS),  # PEP 425: one tag that fits
        (("cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_28_x86_64"), "2.12", FAIL),
        (("cp312-cp312-linux_x86_64",), "2.17", NA),  # built here: it names no glibc
        ((), "2.17", NA),
        (("cp312-cp312-manylinux_2_28_x86_64",), DENIED, UNKNOWN),
    ],
)
def test_the_c_library_of_a_wheel(healthy: Snapshot, tags: tuple[str, ...], glibc: Any, expected: Verdict) -> None:
    assert not isinstance(healthy.python, Missing)
    found = healthy.python.distributions
    assert not isinstance(found, Missing)
    items = tuple(msgspec.structs.replace(item, tags=tags) if item.name == "torch" else item for item in found)
    assert verdict(changed(healthy, "python", distributions=items, glibc=glibc), "glibc-too-old") is expected


def test_a_torch_that_pip_does_not_list_names_no_c_library(healthy: Snapshot) -> None:
    assert verdict(changed(healthy, "python", distributions=()), "glibc-too-old") is NA


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/lib64/libc.so.6: version `GLIBC_2.34' not found (required by libfoo.so)", FAIL),
        ("/lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by libfoo.so)", PASS),
        ("libfoo.so: needs GLIBC_2.34", PASS),
    ],
)
def test_the_loader_says_that_the_c_library_is_old(healthy: Snapshot, said: str, expected: Verdict) -> None:
    assert verdict(changed(healthy, "python", complaints=(said,)), "glibc-too-old") is expected


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ({"hip": "7.1", "cuda": NOTHING}, FAIL),
        ({"hip": NOTHING, "cuda": NOTHING}, PASS),
        ({"hip": DENIED, "cuda": "13.0"}, PASS),
        ({"hip": DENIED, "cuda": NOTHING}, UNKNOWN),
        ({"hip": DENIED, "cuda": DENIED}, UNKNOWN),
        ({"hip": DENIED, "cuda": NOTHING, "version": "2.11.0+cpu"}, PASS),
    ],
)
def test_a_build_for_the_other_maker(healthy: Snapshot, build: dict[str, Any], expected: Verdict) -> None:
    assert not isinstance(healthy.python, Missing)
    torch = msgspec.structs.replace(healthy.python.torch, **build)
    assert verdict(changed(healthy, "python", torch=torch), "rocm-build-on-nvidia-host") is expected


@pytest.mark.parametrize(
    ("loaded", "bus", "expected"), [(True, True, PASS), (True, False, UNKNOWN), (False, False, PASS), (DENIED, True, UNKNOWN)]
)
def test_nouveau_is_loaded_and_the_bus_unseen(healthy: Snapshot, loaded: Any, bus: bool, expected: Verdict) -> None:
    seen = changed(healthy, "driver", nouveau_loaded=loaded)
    assert verdict(seen if bus else changed(seen, "pci", devices=DENIED), "nouveau-loaded") is expected


@pytest.mark.parametrize(
    ("detail", "remedy", "expected", "word"),
    [
        ("it leads into /root, which this user may not enter", "", FAIL, "UV_PYTHON_INSTALL_DIR"),
        ("/opt/env/bin/python is not executable", "", FAIL, "noexec"),
        ("not run as root: two users may write there", "run it as the user who trains with it", UNKNOWN, ""),
    ],
)
def test_a_python_that_may_not_be_started(healthy: Snapshot, detail: str, remedy: str, expected: Verdict, word: str) -> None:
    """That its base Python was removed, as the rule itself says, would be wrong for each."""
    seen = changed(healthy, "python", version=Missing(Why.DENIED, "/opt/env/bin/python", detail, remedy))
    result = engine.judge(seen, (BY_ID["interpreter-does-not-start"],))[0]
    assert result.verdict is expected
    assert word in " ".join(action.text for evidence in result.evidence for action in evidence.fix if isinstance(action, Advice))


@pytest.mark.parametrize(
    ("variables", "said", "named"),
    [
        ({"PYTHONMALLOC": "jemalloc"}, "PYTHONMALLOC: unknown allocator", "PYTHONMALLOC=jemalloc"),
        (
            {"PYTHON(": "1", "PYTHONMALLOC": "jemalloc"},
            "PYTHONMALLOC: unknown allocator",
            "PYTHONMALLOC=jemalloc",
        ),  # no regular expression
        ({"PYTHONIOENCODING": "utf9", "PYTHONHOME": ""}, "LookupError: unknown encoding: utf9", "PYTHONIOENCODING=utf9"),
        ({"PYTHONHOME": "/nope"}, "ModuleNotFoundError: No module named 'encodings'", "PYTHONHOME=/nope"),
        ({"PYTHONPATH": "/x"}, "ModuleNotFoundError: No module named 'encodings'", ""),
    ],
)
def test_a_variable_that_ends_each_python_is_named(healthy: Snapshot, variables: dict[str, str], said: str, named: str) -> None:
    seen = changed(healthy, "python", version=Missing(Why.FAILED, "python3", f"the interpreter ended with status 1: {said}"))
    seen = changed(seen, "session", env=variables)
    (evidence,) = engine.judge(seen, (BY_ID["interpreter-does-not-start"],))[0].evidence
    assert (named in evidence.seen) if named else evidence.seen.endswith("'encodings'")
    assert [f"unset {named.partition('=')[0]}" in action.text for action in evidence.fix if isinstance(action, Advice)] == (
        [True] if named else []
    )
