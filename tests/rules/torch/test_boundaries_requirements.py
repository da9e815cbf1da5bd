"""Requires-Dist lines: names, markers and versions as PEP 503, 508 and 440 define them; amounts as people write them."""

from __future__ import annotations

import pytest

from torchtune_sys.formats.requirements import Requirement, asked_for, holds, parse, satisfies
from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.rules.amounts import size


@pytest.mark.parametrize(
    ("line", "name", "extras", "specifier", "marker"),
    [
        ("numpy", "numpy", (), "", ""),
        ("PyXDG>=0.2", "pyxdg", (), ">=0.2", ""),
        ("typing_extensions", "typing-extensions", (), "", ""),
        ("Ruamel.YAML>1", "ruamel-yaml", (), ">1", ""),
        ("a<2", "a", (), "<2", ""),
        ("a>2", "a", (), ">2", ""),
        ("a==2", "a", (), "==2", ""),
        ("a!=2", "a", (), "!=2", ""),
        ("a~=2.1", "a", (), "~=2.1", ""),
        ("torch (>=2.0, <3)", "torch", (), ">=2.0,<3", ""),
        ("a[x, y] >= 1 ; extra == 'z'", "a", ("x", "y"), ">=1", "extra == 'z'"),
    ],
)
def test_lines(line: str, name: str, extras: tuple[str, ...], specifier: str, marker: str) -> None:
    assert parse(line) == Requirement(name=name, extras=extras, specifier=specifier, marker=marker)


def test_an_extra_ends_at_its_bracket() -> None:
    assert parse("a[x]==1]").extras == ("x",)


@pytest.mark.parametrize(
    ("found", "specifier", "expected"),
    [
        ("1.2", "", True),
        ("1.2", "==1.2.0", True),
        ("1.2.0", "==1.2", True),
        ("1.2", "==1.2.1", False),
        ("1.2.1", "==1.2", False),
        ("1.2.1", "!=1.2", True),
        ("1.2", "===1.2", True),
        ("1.2+cu118", "==1.2+cpu", True),
        ("1.2.7", "==1.2.*", True),
        ("1.2", "==1.2.*", True),
        ("1.3", "==1.2.*", False),
        ("1.2", "!=1.2.0", False),
        ("1.3", "!=1.2", True),
        ("1.2.7", "!=1.2.*", False),
        ("1.3", "!=1.2.*", True),
        ("1.4", "~=1.4", True),
        ("1.9", "~=1.4", True),
        ("1.3", "~=1.4", False),
        ("2.0", "~=1.4", False),
        ("1.4.5", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.2", "<1.2", False),
        ("1.1", "<1.2", True),
        ("1.2", "<=1.2", True),
        ("1.3", "<=1.2", False),
        ("1.2", ">1.2", False),
        ("1.3", ">1.2", True),
        ("1.2", ">=1.2", True),
        ("1.1", ">=1.2", False),
        ("1.5", ">1,<2", True),
        ("2.5", ">1,<2", False),
        ("0.5", ">1,<2", False),
        # What this reader does not order is not judged: pre-releases, development versions, unknown operators.
        ("1.2rc1", "==1.2rc1", True),
        ("1.2rc1+cpu", "==1.2rc1+cu130", True),
        ("1.2rc1", "==1.2", None),
        ("1.2rc1", ">=1.2rc1", None),
        ("1.2rc1", ">=1", None),
        ("", "==1", None),
        ("1.2", ">=1.2rc1", None),
        ("1.2", ">1,<2.0rc1", None),
        ("1.2", "==", None),
        ("1.2", "=1.2", None),
        ("1.2", "1.2", None),
    ],
)
def test_versions(found: str, specifier: str, expected: bool | None) -> None:
    assert satisfies(found, specifier) is expected


HERE = {
    "python_version": "3.10",
    "python_full_version": "3.10.12",
    "platform_release": "6.8.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "extra": "",
}


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("", True),
        ("python_version < '3.9'", False),  # as versions, not as text
        ("python_version >= '3.9'", True),
        ("python_full_version < '3.10.9'", False),
        ("python_full_version >= '3.10.9'", True),
        ("platform_release < '10.0'", True),
        ("'3.9' <= python_version", True),
        ("'linux' == sys_platform", True),
        ('"linux" == sys_platform', True),
        ("sys_platform == 'linux'", True),
        ("sys_platform=='linux'", True),
        ("sys_platform != 'linux'", False),
        ("sys_platform != 'win32'", True),
        ("(sys_platform == 'win32') or (platform_machine == 'x86_64')", True),
        ("sys_platform == 'win32' and platform_machine == 'x86_64'", False),
        ("os_name == 'posix'", None),  # not told
        ("sys_platform == 'linux' nonsense", None),
        ("sys_platform in 'linux'", None),
        ("sys_platform", None),
    ],
)
def test_markers(marker: str, expected: bool | None) -> None:
    assert holds(marker, HERE) is expected


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        # A pre-release comes before its own release and after all earlier ones.
        ("python_full_version < '3.14'", True),
        ("python_full_version >= '3.14'", False),
        ("python_full_version > '3.12.9'", True),
        ("python_full_version != '3.14.0'", True),
        # Beside its own release this reader does not order it, nor a kernel's name that is no version.
        ("python_full_version < '3.13'", None),
        ("python_full_version >= '3.13.0'", None),
        ("python_full_version == '3.13.*'", None),
        ("'3.14' > python_full_version", None),
        ("platform_release >= '6.0'", None),
        # What cannot be told decides only where the rest does not.
        ("platform_release >= '6.0' and sys_platform == 'win32'", False),
        ("sys_platform == 'win32' and platform_release >= '6.0'", False),
        ("platform_release >= '6.0' and sys_platform == 'linux'", None),
        ("platform_release >= '6.0' or sys_platform == 'linux'", True),
        ("sys_platform == 'linux' or platform_release >= '6.0'", True),
        ("(platform_release >= '6.0' or sys_platform == 'win32') and sys_platform == 'linux'", None),
    ],
)
def test_what_cannot_be_told_is_not_false(marker: str, expected: bool | None) -> None:
    here = {**HERE, "python_full_version": "3.13.0rc2", "platform_release": "6.8.0-45-generic"}
    assert holds(marker, here) is expected


def test_an_interpreter_before_its_release_gets_what_is_asked_for_it() -> None:
    torch = Distribution(name="torch", version="1", location="site-packages", requires=("a; python_full_version < '3.14'",))
    assert [found.name for found in asked_for(torch, {**HERE, "python_full_version": "3.13.0rc2+"}, {})] == ["a"]


def test_what_is_asked_for_here() -> None:
    """cuda-toolkit's extras are followed, those that were asked for alone; nobody else's are."""

    def item(name: str, *requires: str) -> Distribution:
        return Distribution(name=name, version="1", location="site-packages", requires=requires)

    torch = item(
        "torch",
        "win; sys_platform == 'win32'",
        "optree; extra == 'optree'",
        "plain; extra == ''",
        "cuda-toolkit[cublas]==13",
        "other[cublas]",
        "last",
    )
    inner = ("cublas-lib; extra == 'cublas'", "curand-lib; extra == 'curand'", "base", "base2; sys_platform == 'linux'")
    others = {"cuda-toolkit": item("cuda-toolkit", *inner), "other": item("other", "no-lib; extra == 'cublas'")}
    here = {key: value for key, value in HERE.items() if key != "extra"}
    assert [found.name for found in asked_for(torch, here, others)] == ["plain", "cuda-toolkit", "cublas-lib", "other", "last"]
    assert [found.name for found in asked_for(torch, here, {})] == ["plain", "cuda-toolkit", "other", "last"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unlimited"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1 TiB"),
        (10 << 40, "10 TiB"),
    ],
)
def test_amounts(count: int | None, text: str) -> None:
    assert size(count) == text
