"""Words that are looked for before a pattern of the filter of secrets is compiled: no secret may slip past them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.host.environment import secret_name
from torchtune_sys.host.kernel_arguments import harmless
from torchtune_sys.host.secrets import filter as secrets
from torchtune_sys.host.secrets import words

NAME = st.from_regex(re.compile(words.NAMES, re.ASCII), fullmatch=True)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("shape", "looked_for"), [(shape, held) for shape, held, _ in words.SHAPES])
def test_each_shape_holds_a_word_that_is_looked_for(shape: str, looked_for: tuple[str, ...]) -> None:
    @settings(max_examples=20, deadline=None, database=None)
    @given(st.from_regex(re.compile(shape, re.ASCII), fullmatch=True))
    def holds(token: str) -> None:
        assert secrets._has(secrets._lowered(token), looked_for)

    holds()


@settings(max_examples=300, deadline=None, database=None)
@given(NAME)
def test_each_name_holds_a_word_that_is_looked_for(name: str) -> None:
    assert secrets._has(secrets._lowered(name), words.IN_NAMES)


_PIECES = (
    "--",
    "-",
    "=",
    ":",
    ": ",
    " ",
    "\t",
    '"',
    "'",
    "\\\\",
    "//",
    "@",
    "/",
    ".",
    ",",
    "(",
    "x",
    "a1",
    "TOKEN",
    "joe",
    "curl ",
    "qwertyuiop",
    "\u00a0",
    "\u017f",
)


_WORDS = (
    "password",
    "Api-Key",
    "token",
    "-pwd",
    "_auth",
    "x-amz-signature",
    "cookie",
    "PSK",
    "DB_SECRET",
    "MASTER_KEY",
    "hf_token",
)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.sampled_from((*_PIECES, *_WORDS)), max_size=12).map("".join))
def test_what_a_look_before_a_pattern_leaves_out_the_pattern_would_not_have_found(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_names_an_option", "_names_a_key", "_names_a_variable"):
            patch.setattr(secrets, name, lambda *_words: True)
        plain = secrets.scrubbed(text)
    assert secrets.scrubbed(text) == plain


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(
        st.lists(st.sampled_from((*_PIECES, *_WORDS, "\n", "-----BEGIN PRIVATE KEY-----")), max_size=6).map("".join),
        max_size=5,
    )
)
def test_an_answer_s_texts_together_hide_what_each_hides(texts: list[str]) -> None:
    value = {"a": texts, "b": {"c": texts[:1]}, "d": 1}
    assert secrets.scrubbed_answer(value) == secrets.scrubbed_data(value)


@pytest.mark.parametrize(
    "text", ['{{"sas": "{0}"}}', "'sig': '{0}'", "paſſword={0}", "apı_key={0}", "--ſecret {0} -x", "tcp_syncookies=1 token={0}"]
)
def test_names_in_json_and_in_letters_that_patterns_take_for_ours(text: str) -> None:
    assert "qwertyuiopas" not in secrets.scrubbed(text.format("qwertyuiopas"))


def test_the_kernel_s_setting_is_no_cookie() -> None:
    assert secrets.scrubbed("net.ipv4.tcp_syncookies=2") == "net.ipv4.tcp_syncookies=2"


USUAL = [
    "# Uncomment the next line to enable TCP/IP SYN cookies\n# See http://lwn.net/Articles/277146/\n# Note: this value may cause\n"
    "#net.ipv4.tcp_syncookies=1\n# Magic system request Key\n# 0=disable, 1=enable all, >1 bitmask of sysrq functions\n",
]


@pytest.mark.parametrize("text", USUAL)
def test_what_each_host_has_compiles_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's sysctl.conf cost each check a tenth of its time."""
    with monkeypatch.context() as patched:
        patched.setattr(secrets, "_forms", lambda: pytest.fail("the forms of secrets were imported"))
        for name in ("_KEYED", "_YAML"):
            patched.setattr(secrets, name, None)
        assert secrets.scrubbed(text) == text
    assert "qwertyuiopas" not in secrets.scrubbed(f"{text}# Magic system request Key: db_password=qwertyuiopas\n")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("NCCL_IB_PKEY", False), ("PKEYKEY", True), ("GH_PAT", True), ("PATH", False), ("X_PATH", False), ("HTTPS_PROXY", True), ("MY_AUTH", True)],
)  # fmt: skip
def test_variables(name: str, is_one: bool) -> None:
    assert secret_name(name) is is_one


@pytest.mark.parametrize(
    "name", ["systemd.unit", "systemd.unit.x", "mlx5_core.x", "iommu", "pci-e", "nvidia-drm.modeset", "xe.force_probe"]
)
def test_arguments_of_families(name: str) -> None:
    assert harmless(name)


@pytest.mark.parametrize("name", ["systemd", "systemd.setenv", "mlx5_", "xenial x", "x", "iscsi_initiator", "ip", "sysctlx.y"])
def test_other_arguments(name: str) -> None:
    assert not harmless(name)


_LINES = st.sampled_from(
    (
        "mlx5_core: link up",
        "token=abcdefgh1234",
        "PASSWſword=x",
        "eth0: renamed",
        "https://joe:hunter2@host/x",
        "K: 'sig=abc'",
        "",
    )
)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(_LINES, min_size=2, max_size=6))
def test_a_line_is_filtered_in_a_long_text_as_it_is_alone(lines: list[str]) -> None:
    assert secrets.scrubbed("\n".join(lines)) == "\n".join(map(secrets.scrubbed, lines))


def test_a_line_is_looked_through_for_what_the_text_holds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of a kernel's log was looked through for each of a hundred words."""
    asked: list[int] = []
    monkeypatch.setattr(secrets, "_has", lambda low, words: asked.append(len(words)) or any(word in low for word in words))
    secrets.scrubbed("mlx5_core: link up\ntoken=abcdefgh1234\n" * 50)
    assert asked.count(len(words.HINTS)) == 0
