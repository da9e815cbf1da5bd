"""Which libraries the loader takes beside torch's own, and what Triton and extensions are built with; each mark from both sides (torch_compile)."""

from __future__ import annotations

from typing import Any

import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, altered, asked, lines, verdict
from torch_tools_hosts import SITE, with_items

from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.facts.software import BuildTools, CompileCache
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing

TOOLS: dict[str, Any] = {
    "libc_headers": True,
    "host_compiler": "/usr/bin/gcc",
    "host_compiler_gcc": 13,
    "nvcc_gcc_limit": 13,
    "ninja": "/usr/bin/ninja",
}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, PASS),
        ({"host_compiler_gcc": 14}, FAIL),
        ({"host_compiler_gcc": 12}, PASS),
        ({"host_compiler_gcc": 14, "limit_lifted": True}, NA),
        ({"nvcc_gcc_limit": NOTHING}, NA),
        ({"nvcc_gcc_limit": DENIED}, UNKNOWN),
        ({"host_compiler": NOTHING, "host_compiler_gcc": DENIED}, NA),
        ({"host_compiler": NOTHING, "host_compiler_gcc": NOTHING}, NA),
        ({"host_compiler_gcc": NOTHING}, NA),  # clang
        ({"host_compiler": DENIED}, UNKNOWN),
        ({"host_compiler_gcc": DENIED}, UNKNOWN),
    ],
)
def test_the_compiler_that_nvcc_takes(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    seen = altered(healthy, software__build_tools=BuildTools(**{**TOOLS, **facts}))
    assert verdict(seen, "host-compiler-too-new") is expected


@pytest.mark.parametrize(("there", "expected"), [(True, PASS), (False, FAIL), (NOTHING, NA), (DENIED, UNKNOWN)])
def test_the_headers_of_the_c_library(healthy: Snapshot, there: Any, expected: Verdict) -> None:
    seen = altered(healthy, software__build_tools=BuildTools(**{**TOOLS, "libc_headers": there}))
    assert verdict(seen, "c-library-headers-missing") is expected


@pytest.mark.parametrize(
    ("torch", "compiler", "expected"),
    [
        ("2.11.0", "/usr/bin/gcc", FAIL),  # torch.compile builds C++ for the CPU
        ("2.11.0", NOTHING, NA),  # and nothing without a compiler
        ("2.11.0", DENIED, FAIL),
        ("1.13.1", "/usr/bin/gcc", NA),
    ],
)
def test_the_headers_of_python_matter_without_triton(healthy: Snapshot, torch: str, compiler: Any, expected: Verdict) -> None:
    seen = altered(with_items(healthy, torch=torch), python__headers=False, python__compiler=compiler)
    assert verdict(seen, "python-headers-missing") is expected


@pytest.mark.parametrize(("there", "expected"), [("/usr/bin/ninja", PASS), (NOTHING, FAIL), (DENIED, UNKNOWN)])
def test_ninja(healthy: Snapshot, there: Any, expected: Verdict) -> None:
    seen = altered(with_items(healthy, ninja="1.13"), software__build_tools=BuildTools(**{**TOOLS, "ninja": there}))
    assert verdict(seen, "ninja-not-on-path") is expected
    assert verdict(with_items(seen, numpy="2.1.3"), "ninja-not-on-path") is NA


@pytest.mark.parametrize("rule_id", ["host-compiler-too-new", "c-library-headers-missing", "ninja-not-on-path"])
def test_nobody_looks_for_build_tools_where_no_driver_runs(healthy: Snapshot, rule_id: str) -> None:
    seen = altered(healthy, python__distributions=healthy_items(healthy, ninja="1.13"))
    assert verdict(altered(seen, software__build_tools=NOTHING), rule_id) is NA
    assert verdict(altered(seen, software__build_tools=DENIED), rule_id) is UNKNOWN


def healthy_items(seen: Snapshot, **more: str) -> tuple[Distribution, ...]:
    assert not isinstance(seen.python, Missing) and not isinstance(seen.python.distributions, Missing)
    added = (Distribution(name=name, version=number, location=SITE) for name, number in more.items())
    return (*seen.python.distributions, *added)


CACHES = {
    "compile-cache-not-writable": ("writable", False),
    "compile-cache-not-executable": ("noexec", True),
    "compile-cache-on-network": ("network", True),
}


def cache(purpose: str, **facts: Any) -> CompileCache:
    good = {"filesystem": "ext4", "mount_point": "/", "noexec": False, "network": False, "writable": True}
    return CompileCache(**{**good, "purpose": purpose, "variable": "X", "path": "/tmp/x", **facts})


@pytest.mark.parametrize("rule_id", CACHES)
def test_each_cache_is_judged_by_itself(healthy: Snapshot, rule_id: str) -> None:
    field, bad = CACHES[rule_id]
    marks = {DENIED: UNKNOWN, bad: FAIL, not bad: PASS}
    facts = [cache(str(number), **{field: fact}) for number, fact in enumerate(marks)]
    found = lines(altered(healthy, software__compile_caches=tuple(facts)), rule_id)
    assert found == [(f"{number} cache /tmp/x", mark) for number, mark in enumerate(marks.values())]
    without = altered(healthy, software__compile_caches=NOTHING)
    if rule_id == "compile-cache-not-executable":  # then torch.compile builds below the temporary directory
        assert verdict(without, rule_id) is PASS
        without = altered(without, python__compiler=NOTHING)
    assert verdict(without, rule_id) is NA
    assert verdict(altered(healthy, software__compile_caches=DENIED), rule_id) is UNKNOWN


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected"),
    [(1, None, NA), (1, 1, NA), (1, 2, FAIL), (2, None, FAIL), (2, 1, FAIL), (None, None, FAIL)],
)
def test_one_process_alone_may_keep_them_on_the_network(
    healthy: Snapshot, ranks: int | None, nodes: int | None, expected: Verdict
) -> None:
    seen = altered(healthy, software__compile_caches=(cache("Triton", network=True),))
    assert verdict(asked(seen, ranks=ranks, nodes=nodes), "compile-cache-on-network") is expected
