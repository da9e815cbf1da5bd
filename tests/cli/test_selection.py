"""--select, --ignore, --profile and --config."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from driven import judged_by, run
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.errors import BadConfig, UnknownName, UserError
from torchtune_sys.model.rule import Param, Rule, Severity
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.profiles import FAIL_ON, PROFILES, Config, RuleSelection, choose, parse_config


def rule(id: str, family: str, severity: Severity, *params: Param) -> Rule:
    return Rule(id=id, family=family, severity=severity, title=id, doc="", judge=lambda s, p: (), params=params)


RULES = (
    rule("driver-too-old", "driver", Severity.ERROR),
    rule("swap-in-use", "memory", Severity.WARNING, Param("percent", 10.5, "share"), Param("names", "a", "text")),
    rule("swappiness-high", "sysctl", Severity.ADVICE, Param("limit", 10, "largest"), Param("loud", True, "flag")),
)


def ids(choice: RuleSelection) -> list[str]:
    return [item.id for item in choice.rules]


def chosen(
    select: tuple[str, ...] = (), ignore: tuple[str, ...] = (), config: Config | None = None, profile: str = ""
) -> list[str]:
    return ids(choose(RULES, config or Config(), profile=profile, select=select, ignore=ignore))


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), ["driver-too-old", "swap-in-use", "swappiness-high"]),
        (("swappiness-high,driver-too-old",), (), ["driver-too-old", "swappiness-high"]),
        (("memory", "driver"), (), ["driver-too-old", "swap-in-use"]),
        (("error, advice",), (), ["driver-too-old", "swappiness-high"]),
        (("swap*",), (), ["swap-in-use", "swappiness-high"]),
        (("swap*",), ("sysctl",), ["swap-in-use"]),
        (("s?ap*",), (), ["swap-in-use", "swappiness-high"]),
        (("[d-s]?*",), (), ["driver-too-old", "swap-in-use", "swappiness-high"]),
        (("[a-d]?*",), (), ["driver-too-old"]),
        ((), ("warning", "advice"), ["driver-too-old"]),
        (("driver-too-old,swap-in-use",), ("driver-too-old",), ["swap-in-use"]),
        ((" ,",), (), ["driver-too-old", "swap-in-use", "swappiness-high"]),
    ],
)
def test_selection_keeps_the_catalogues_order(select: tuple[str, ...], ignore: tuple[str, ...], expected: list[str]) -> None:
    assert chosen(select, ignore) == expected


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("swappines-high", "swappiness-high"),
        ("memroy", "memory"),
        ("warnings", "warning"),
        ("gpu-*", "one of driver-too-old"),
        ("zzz", ""),
    ],
)
def test_a_selector_that_names_nothing_is_an_error_with_a_suggestion(name: str, suggestion: str) -> None:
    for arguments in ({"select": (name,)}, {"ignore": (name,)}):
        with pytest.raises(UnknownName) as error:
            chosen(**arguments)
        assert name in error.value.seen
        assert suggestion in error.value.todo


def test_a_severity_that_no_rule_has_is_a_right_name() -> None:
    assert ids(choose(RULES[:1], Config(), ignore=("advice", "warning"))) == ["driver-too-old"]
    assert ids(choose(RULES[1:2], Config(), ignore=("error", "advice"))) == ["swap-in-use"]


def test_nothing_left_to_judge_by_is_an_error() -> None:
    with pytest.raises(UnknownName):
        chosen(("memory",), ("memory",))


def test_a_file_selects_and_the_command_line_overrules_it() -> None:
    config = Config(select=("memory", "sysctl"), ignore=("sysctl",), disabled=("driver-too-old",))
    assert chosen(config=config) == ["swap-in-use"]
    assert chosen(("driver,memory",), config=config) == ["swap-in-use"]
    assert chosen(("driver-too-old",), config=config) == ["driver-too-old"], "named by its own id"
    assert chosen((), ("memory",), Config(select=("memory", "driver"))) == ["driver-too-old"]


def test_parameters_of_the_file_win_over_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"ci": PROFILES["ci"].__class__(doc="", params={"swappiness-high": {"limit": 30, "loud": False}})}
    monkeypatch.setattr("torchtune_sys.rules.profiles.PROFILES", changed)
    found = choose(RULES, Config(profile="ci", params={"swappiness-high": {"limit": 40}}))
    assert found.overrides == {"swappiness-high": {"limit": 40, "loud": False}}
    assert choose(RULES, Config(params={"swap-in-use": {"percent": 1.0}})).overrides == {"swap-in-use": {"percent": 1.0}}


FILE = """
profile = "ci"
select = ["memory", "sysctl"]
ignore = "swap-in-use"
fail-on = "warning"

[rules.swappiness-high]
limit = 5
loud = false

[rules.swap-in-use]
enabled = false
percent = 20
names = "b"
"""


def test_a_configuration_file_says_what_it_says() -> None:
    assert parse_config(FILE, "x.toml", RULES) == Config(
        profile="ci",
        select=("memory", "sysctl"),
        ignore=("swap-in-use",),
        fail_on="warning",
        disabled=("swap-in-use",),
        params={"swappiness-high": {"limit": 5, "loud": False}, "swap-in-use": {"percent": 20.0, "names": "b"}},
    )


def test_a_file_need_not_say_everything() -> None:
    assert parse_config("", "x.toml", RULES) == Config()
    assert parse_config("fail-on = 'never'", "x.toml", RULES) == Config(fail_on="never")
    assert parse_config("[rules.swap-in-use]\nenabled = true", "x.toml", RULES) == Config()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[rules.swap-in-use]\npercent = 20", 20.0),
        ("[rules.swap-in-use]\npercent = 20.5", 20.5),
        ("[rules.swap-in-use]\nnames = '20'", "20"),
        ("[rules.swappiness-high]\nlimit = 20", 20),
        ("[rules.swappiness-high]\nloud = false", False),
    ],
)
def test_a_parameter_keeps_the_type_of_its_default(text: str, value: float | str) -> None:
    ((found,),) = (values.values() for values in parse_config(text, "x.toml", RULES).params.values())
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profil = 'ci'", "did you mean profile"),
        ("profile = 'clutser'", "did you mean cluster"),
        ("profile = 3", "profile is a name"),
        ("fail-on = 'info'", "one of error, warning, advice, never"),
        ("fail-on = 1", "one of error"),
        ("select = ['memroy']", "did you mean memory"),
        ("select = [1]", "list of names"),
        ("ignore = {}", "list of names"),
        ("rules = 1", "table of rules"),
        ("[rules]\nswappiness-high = 1", "is a table"),
        ("[rules.swappiness-hihg]\nlimit = 1", "did you mean swappiness-high"),
        ("[rules.swappiness-high]\nlimits = 1", "did you mean limit"),
        ("[rules.swappiness-high]\nlimit = '1'", "a whole number"),
        ("[rules.swappiness-high]\nlimit = 1.5", "a whole number"),
        ("[rules.swappiness-high]\nlimit = true", "a whole number"),
        ("[rules.swappiness-high]\nloud = 1", "true or false"),
        ("[rules.swap-in-use]\npercent = 'x'", "a number"),
        ("[rules.swap-in-use]\npercent = nan", "a number"),
        ("[rules.swap-in-use]\nnames = []", "a string"),
        ("[rules.swap-in-use]\nenabled = 'no'", "true or false"),
        ("[rules.swappiness-high]\nseverity = 'error'", "no parameter"),
        ("select = [", "not valid TOML"),
        ("\x00", "not valid TOML"),
    ],
)
def test_what_a_file_may_not_say(text: str, words: str) -> None:
    with pytest.raises((BadConfig, UnknownName)) as error:
        parse_config(text, "x.toml", RULES)
    assert words in str(error.value)
    assert error.value.seen.startswith("x.toml") or isinstance(error.value, UnknownName)
    assert error.value.exit_code == 2


@given(st.text(max_size=80))
def test_any_text_is_a_configuration_or_an_error_for_the_user(text: str) -> None:
    with contextlib.suppress(UserError):
        parse_config(text, "x.toml", RULES)


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_names_what_exists_and_leaves_something(name: str) -> None:
    found = choose(CATALOGUE, Config(), profile=name)
    assert found.rules
    by_id = {item.id: item for item in CATALOGUE}
    for rule_id, values in PROFILES[name].params.items():
        declared = {param.name: param.default for param in by_id[rule_id].params}
        for key, value in values.items():
            assert type(declared[key]) is type(value), f"{name}: {rule_id}.{key}"


def test_the_command_line_knows_the_same_names() -> None:
    from torchtune_sys.cli import options
    from torchtune_sys.cli.commands import check

    assert list(PROFILES) == list(options.PROFILES)
    assert FAIL_ON == check._FAIL_ON


def test_a_file_changes_the_verdict(tmp_path: Path) -> None:
    place = tmp_path / "site.toml"
    place.write_text("fail-on = 'warning'\n[rules.made-w-at-most]\nlimit = 5\n")
    assert judged_by("W-at-most").returncode == 0
    assert judged_by("W-at-most", "--config", str(place)).returncode == 1
    assert judged_by("W-at-most", env={"TORCHTUNE_SYS_CONFIG": str(place)}).returncode == 1
    assert judged_by("W-at-most", "--config", str(place), "--fail-on", "error").returncode == 0


@pytest.mark.parametrize("kind", ["directory", "binary", "empty"])
def test_files_that_are_no_configuration(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "x.toml"
    if kind == "directory":
        place.mkdir()
    else:
        place.write_bytes(b"" if kind == "empty" else bytes(range(256)))
    found = run("rules", "--format", "json") if kind == "empty" else run("check", "--config", str(place))
    assert found.returncode == (0 if kind == "empty" else 2)
    assert "Traceback" not in found.stderr


def test_a_missing_file_that_the_environment_names_says_so() -> None:
    found = judged_by("E-passes", env={"TORCHTUNE_SYS_CONFIG": "/no/such.toml"})
    assert found.returncode == 2
    assert "/no/such.toml (named by TORCHTUNE_SYS_CONFIG)" in found.stderr


def test_selection_on_the_real_program() -> None:
    found = judged_by("E-passes W-passes A-passes", "--select", "warning,made-a-*", "--format", "json")
    assert [item["rule"] for item in json.loads(found.stdout)["results"]] == ["made-w-passes", "made-a-passes"]
