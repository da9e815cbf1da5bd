"""What chance seldom makes, each at its place: numbers of thousands of digits, what is nested a thousand times, names that grow by each other."""

from __future__ import annotations

import ast
import io
import json
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from conftest import HOSTS, load
from fuzz.hosts import _changed
from fuzz.target import odd_forms, recording
from fuzz.targets import TARGETS
from torchtune_sys import engine
from torchtune_sys.cli.workload import _positive
from torchtune_sys.errors import UserError
from torchtune_sys.fleet.facts_file import EACH, ROWS, WORDS
from torchtune_sys.fleet.leaves import leaves
from torchtune_sys.formats.cufile import parse_cufile
from torchtune_sys.host.input import tarball
from torchtune_sys.host.peers.local import RankLink
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.host.recording.identities import _host_name
from torchtune_sys.host.recording.pseudonym import _MAIL
from torchtune_sys.model import codec
from torchtune_sys.model.actions import text
from torchtune_sys.model.facts.network import CounterGrowth
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.model.values import Missing, Why, need
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.agents import place_of
from torchtune_sys.render.node_set import node_set
from torchtune_sys.rules import by_id
from torchtune_sys.rules.torch.driver_and_gpu import _of_other_package

SOURCES = Path(HOSTS).resolve().parent.parent / "src/torchtune_sys"
SLOW = ("facts", "own documents", "input", "diagnose", "flight recorder", "report", "nvidia-bug-report")
"""Those that judge a host with all rules, or search all messages: of these a few."""
BINARY = ("answer of a host", "file of a host", "archive", "archive of logs", "elf", "ld.so.cache", "smbios")


@pytest.mark.sampled(8, 30)
@pytest.mark.parametrize("name", sorted(TARGETS.keys() - set(BINARY)))
def test_odd_values_are_read_or_refused(name: str) -> None:
    """Found so: versions of 5,000 digits ended check, diagnose and compare; a proof of a thousand brackets ended check."""
    seeds = [seed for seed in TARGETS[name].seeds() if len(seed) < 20_000][: 1 if name in SLOW else 6]
    for seed in seeds:
        for number, data in enumerate(odd_forms(seed)):
            if name in SLOW and number % 3:
                continue
            try:
                TARGETS[name].read(data)
            except Exception as error:
                pytest.fail(f"{type(error).__name__}: {error}\nof {data[:2000]!r}")


@pytest.mark.parametrize("value", ["9" * 5000, "\u00b2"])
def test_a_setting_that_is_no_number(value: str) -> None:
    host = recording("healthy")
    path = "/proc/sys/kernel/numa_balancing"
    _changed("healthy", {**host, "files": {**host["files"], path: value + "\n"}}, {("files", path)})


@pytest.mark.parametrize(
    "error", [{"error": []}, {"error": {"a": 1}}, {"error": "denied", "detail": [1]}, {"error": "denied", "source": None}]
)
def test_a_reason_in_a_recording_that_is_no_text(error: dict[str, object]) -> None:
    host = recording("healthy")
    answers = dict.fromkeys(host["answers"], error)
    _changed("healthy", {**host, "answers": answers}, {("answers", name) for name in answers})


@pytest.mark.parametrize("digits", ["9" * 5000, "\u00b2"])
def test_numbers_of_launchers_and_peers(digits: str) -> None:
    assert _positive({"WORLD_SIZE": digits}, "WORLD_SIZE") is None
    assert not messages.is_note(f"worker/{digits}", 8)
    assert node_set([f"n{digits}"]) == f"n{digits}"
    with pytest.raises(UserError, match="the port"):
        place_of(f"n1:{digits}")


@pytest.mark.parametrize(
    "family",
    [
        {"model": json.loads("[" * 60 + "]" * 60)},
        {WORDS: "a.b" + " .a.a" * 12_000},
        {"long" * 250_000: dict.fromkeys(map(str, range(100)), 1)},
        {ROWS: "0-65535", "c": {EACH: [[1, "0-65535"]] * 5}},
    ],
    ids=["deep", "names that grow", "a long name above many", "rows told again"],
)
def test_a_family_of_facts_that_stands_for_more_than_it_is(family: dict[str, Any]) -> None:
    """40 kB of names that grow by each other took 166 MiB, four times that for each doubling."""
    with pytest.raises(ValueError, match=r"deeper|more"):
        leaves(family, "cpu")


def test_a_long_pax_header_takes_time_in_proportion() -> None:
    """Each record was cut off what was left, and each member took all records along: 0.25 s for 400 kB, four times that for each doubling."""

    def archive(size: int) -> bytes:
        body = b"".join(b"11 %05x=a\n" % number for number in range(size // 11))
        header, empty = tarfile.TarInfo("g"), tarfile.TarInfo("f")
        header.type, header.size = b"g", len(body)
        members = empty.tobuf(tarfile.USTAR_FORMAT) * (size // 500)
        return header.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512) + members + bytes(1024)

    class Reader(io.BytesIO):
        def skip(self, size: int) -> bool:
            return bool(self.seek(size, 1))

    def seconds(size: int) -> float:
        data = archive(size)
        started = time.thread_time()
        assert len(list(tarball.members(Reader(data)))) == size // 500
        return time.thread_time() - started

    seconds(10_000)
    once, four = (min(seconds(size) for _ in range(2)) for size in (100_000, 400_000))
    assert four < 8 * max(once, 0.002), f"{once:.4f} and {four:.4f} s at 1 and 4 times the size: quadratic would be 16"


def test_a_cufile_json_of_quotes_that_do_not_close_takes_time_in_proportion() -> None:
    """Each quote was followed to the end of its line: 8.7 s for 32 kB, four times that for each doubling."""

    def seconds(size: int) -> float:
        started = time.thread_time()
        parse_cufile('\\"' * size, "/etc/cufile.json")
        return time.thread_time() - started

    once, four = (min(seconds(size) for _ in range(2)) for size in (4000, 16_000))
    assert four < 10 * max(once, 0.002), f"{once:.4f} and {four:.4f} s at 1 and 4 times the size: quadratic would be 16"


@pytest.mark.parametrize(
    ("read", "piece"),
    [(lambda text: _MAIL.sub("", text), "x-"), (_of_other_package, "c.")],
    ids=["mail addresses", "names of source files"],
)
def test_a_long_word_is_not_looked_through_from_each_of_its_letters(read: Callable[[str], object], piece: str) -> None:
    """2.4 s for 32 kB of the first, with an at sign anywhere in the text, and 0.17 s for 4 kB of the second."""

    def seconds(size: int) -> float:
        started = time.thread_time()
        read(piece * (size // 2))
        return time.thread_time() - started

    once, four = (min(seconds(size) for _ in range(2)) for size in (8000, 32_000))
    assert four < 10 * max(once, 0.002), f"{once:.4f} and {four:.4f} s at 1 and 4 times the size: quadratic would be 16"


def test_a_cell_of_many_rows_takes_time_in_proportion() -> None:
    """Each row was joined to all that stood before it: 6.4 s for 20,000 rows of a report, four times that for each doubling."""
    from torchtune_sys.diagnosis.text import unwrapping

    rows = [f"| {'Warning':25} | {'x' * 45} |", *[f"| {'':25} | {'x' * 45} |"] * 60_000]
    started = time.process_time()
    unwrapping.whole_cells([*enumerate(rows)])
    assert time.process_time() - started < 2


def test_a_host_s_name_of_colons_takes_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        started = time.thread_time()
        assert _host_name(":" * size + "!")
        return time.thread_time() - started

    once, four = (min(seconds(size) for _ in range(2)) for size in (4000, 16_000))
    assert four < 10 * max(once, 0.002), f"{once:.4f} and {four:.4f} s at 1 and 4 times the size: quadratic would be 16"


def test_a_line_that_is_no_json_ends_a_rank_s_link() -> None:
    import socket

    ours, theirs = socket.socketpair()
    link = RankLink(ours)
    theirs.sendall(b"[" * 100_000 + b"\n")
    with theirs, pytest.raises(Gone, match=r"recursion|depth"):
        link.receive(5)
    link.close()


def unguarded(tree: ast.AST, found: Callable[[ast.Call], bool]) -> list[int]:
    """Lines of the calls that stand in no ``try`` and no ``suppress`` with RecursionError."""

    def named(node: ast.AST | None) -> bool:
        return node is None or any(isinstance(part, ast.Name) and part.id == "RecursionError" for part in ast.walk(node))

    def visit(node: ast.AST, held: bool) -> list[int]:
        lines = [node.lineno] if isinstance(node, ast.Call) and found(node) and not held else []
        held = held or (isinstance(node, ast.With) and any(named(item.context_expr) for item in node.items))
        for name, value in ast.iter_fields(node):
            guarded = held or (isinstance(node, ast.Try) and name == "body" and any(named(each.type) for each in node.handlers))
            for child in value if isinstance(value, list) else [value]:
                lines += visit(child, guarded) if isinstance(child, ast.AST) else []
        return lines

    return visit(tree, False)


def test_no_json_is_read_without_a_thought_of_its_depth() -> None:
    """``codec.loads`` and ``loads_of_python`` raise ValueError for it. What we wrote a moment before is no stranger's."""
    ours = {"fleet/comparing.py"}
    lines = {
        str(path.relative_to(SOURCES)): places
        for path in sorted(SOURCES.rglob("*.py"))
        if "worker" not in path.parts
        and (
            places := unguarded(
                ast.parse(path.read_text()), lambda call: ast.unparse(call.func) in ("msgspec.json.decode", "json.loads")
            )
        )
    }
    assert lines.keys() == ours, lines


def test_no_number_is_made_of_what_isdigit_takes_for_one() -> None:
    """int() refuses some of it, and what has more than 4,300 digits: ``model.numbers.natural``."""
    told = []
    for path in sorted(SOURCES.rglob("*.py")):
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if (
                "int(" in line
                and ("isdigit()" in line or "isdecimal()" in line)
                and "len(" not in line
                and "worker" not in path.parts
            ):
                told.append(f"{path.relative_to(SOURCES)}:{number}")
    of_our_own = (  # tables, /proc, the words of msgspec, nine digits
        "knowledge/gpus.py",
        "host/children/rank_processes.py",
        "host/recorded.py",
        "rules/rdma/common.py",
    )
    assert [place for place in told if not place.startswith(of_our_own)] == []


@pytest.mark.parametrize(
    "name",
    ["/sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq", "/sys/fs/cgroup/user.slice/cpu.idle", "/proc/meminfo"],
)
def test_a_number_of_four_hundred_digits_crashes_no_probe_and_no_rule(name: str) -> None:
    host = recording("healthy")
    found = host["files"][name]
    text = re.sub("[0-9]+", "9" * 400, found if isinstance(found, str) else "\n".join(found))
    _changed("healthy", {**host, "files": {**host["files"], name: text}}, {("files", name)})


def test_a_whole_number_that_no_float_holds_makes_no_snapshot() -> None:
    """Four hundred digits where seconds stand ended ``compare`` and ``diagnose`` with an internal error."""
    with pytest.raises(ValueError, match="first_s is too large"):
        from_json({"facts": {"kernel": {"events": [{"kind": "boot", "text": "x", "first_s": 10**400, "last_s": 0.0}]}}})


@pytest.mark.parametrize("number", ['"nan"', '"inf"', '"-inf"', '"1e999"', "1e999", "NaN"])
def test_what_is_no_number_makes_no_snapshot(number: str) -> None:
    with pytest.raises(ValueError, match=r"first_s is no number|malformed|out of range"):
        document = (
            f'{{"facts": {{"kernel": {{"events": [{{"kind": "boot", "text": "x", "first_s": {number}, "last_s": 0.0}}]}}}}}}'
        )
        from_json(codec.loads(document))


@pytest.mark.parametrize("capability", [[], [8], [8, 0, 0]])
def test_a_pair_of_another_length_is_named(capability: list[int]) -> None:
    """It was told in the words of zip(), without a place."""
    with pytest.raises(ValueError, match=r"gpu\.devices\.compute_capability is not of 2 parts"):
        from_json({"facts": {"gpu": {"devices": [{"compute_capability": capability}]}}})


def test_what_a_snapshot_leaves_out_or_sets_to_nothing_crashes_no_rule() -> None:
    """Four rules crashed: on a release of one number, no libcuda beside one that is apart, a port without lanes, two readings at one time."""

    def verdict(host: str, rule: str, family: str, **facts: object) -> Verdict:
        seen = load(host)
        changed = replace(seen, **{family: replace(getattr(seen, family), **facts)}, intent=replace(seen.intent, live=True))
        return engine.judge(changed, [by_id()[rule]])[0].verdict

    other = "torch-for-another-python"
    python = {"version": "3", "live": Missing(Why.ABSENT, "torch", "not asked")}
    assert verdict(f"{other}.fail", other, "python", **python) is Verdict.UNKNOWN
    mismatch = "nvml-driver-library-mismatch"
    for apart in (("580.1",), ("580.1", "570.1")):
        assert verdict("healthy", mismatch, "driver", libraries_apart=apart, libcuda=()) is not Verdict.CRASHED
    degraded = "rdma-rate-degraded"
    devices = need(need(load(f"{degraded}.fail").network).rdma)
    ports = [replace(each, ports=tuple(replace(port, lanes=0) for port in each.ports)) for each in devices]
    assert verdict(f"{degraded}.fail", degraded, "network", rdma=tuple(ports)) is not Verdict.CRASHED
    growing = "rdma-errors-growing"
    grown = CounterGrowth(seconds=0.0, gained={"mlx5_0:1": {"symbol_error": 5, "link_downed": 1}})
    assert verdict(f"{degraded}.fail", growing, "network", rdma_growth=grown) is Verdict.FAIL


@pytest.mark.parametrize("number", [1000, -7])
def test_a_prefix_that_no_address_has_crashes_no_rule(number: int) -> None:
    """It ended ``check`` of a recording with status 4: five rules crashed."""
    address = {"family": "inet", "address": "10.0.0.11", "prefix_length": number}
    one = {"name": "eno1", "index": 2, "type": 1, "flags": 69699, "operstate": "up", "kind": "", "addresses": [address]}
    seen = load("neighbour-table-small.fail", answers={"interfaces": [one]})
    found = engine.judge(seen, [by_id()["neighbour-table-small"]])[0]
    assert found.verdict is Verdict.UNKNOWN, found


@pytest.mark.parametrize("lines", [600, 5000])
def test_a_rule_shows_the_worst_of_very_many(lines: int) -> None:
    """A user's nccl.conf of 40,000 wrong lines made 40,000 findings, 3.5 MB, of root's report."""
    seen = load("nccl-conf-line-ignored.fail", files={"/etc/nccl.conf": " NCCL_DEBUG\n" * lines})
    found = engine.judge(seen, [by_id()["nccl-conf-line-ignored"]])[0]
    assert len(found.evidence) == 513 and found.verdict is Verdict.FAIL
    assert found.evidence[-1].seen == f"{lines - 512} more like these, which are not shown"


def test_a_fix_does_not_name_a_path_of_any_length() -> None:
    seen = load("nvme-scheduler-not-none.fail")
    disks = tuple(replace(disk, name="n" * 5000) for disk in need(need(seen.storage).disks))
    found = engine.judge(replace(seen, storage=replace(need(seen.storage), disks=disks)), [by_id()["nvme-scheduler-not-none"]])[0]
    assert found.verdict is Verdict.FAIL and all(len(text(fix)) < 200 for each in found.evidence for fix in each.fix)


def test_very_many_messages_of_one_gpu_take_time_in_proportion() -> None:
    """A thousand Xids of a log took ``check`` 16 s: each is held against all others."""
    log = recording("xid-gpu-lost.fail")["answers"]["kernel-log"]
    lines = [
        f"[{700 * n + 9}.0] NVRM: Xid (PCI:0000:18:00): {(13, 31, 43, 79)[n % 4]}, pid={n}, name=p{n}, x" for n in range(1000)
    ]
    seen = load("xid-gpu-lost.fail", answers={"kernel-log": {**log, "lines": lines, "now_s": 7e5}})
    begun = time.process_time()
    found = engine.judge(seen, [by_id()["xid-gpu-lost"]])[0]
    assert found.verdict is Verdict.FAIL and time.process_time() - begun < 2
