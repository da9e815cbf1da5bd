"""What compiles here, where compiled kernels go, and what listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge, load
from torchtune_sys.host.live_queries.sockets import bound_socket, parse_bound, parse_listeners, port_listeners
from torchtune_sys.model.facts.software import BuildTools, CompileCache, SoftwareFacts
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, absent
from torchtune_sys.probes.software.build import parse_limit, parse_major

HOST_CONFIG = """\
#if defined (__GNUC__)
#if __GNUC__ > 8
#error -- unsupported GNU version! gcc versions later than 8 are not supported!
#endif
#if defined(__clang__) && (__clang_major__ >= 9)
#error -- unsupported clang version! clang version must be less than 9 and greater than 3.2 .
"""


def software(**overlay: Any) -> SoftwareFacts:
    found = load("healthy", **overlay).software
    assert not isinstance(found, Missing)
    return found


def tools(**overlay: Any) -> BuildTools:
    found = software(**overlay).build_tools
    assert not isinstance(found, Missing)
    return found


def caches(**overlay: Any) -> dict[str, CompileCache]:
    found = software(**overlay).compile_caches
    assert not isinstance(found, Missing)
    return {cache.variable: cache for cache in found}


def test_the_toolkit_says_itself_which_gcc_it_takes() -> None:
    assert parse_limit(HOST_CONFIG) == 8
    assert parse_limit("#error -- unsupported GNU version! gcc 4.10 and up are not supported!") == 0


@pytest.mark.parametrize(
    ("name", "major"),
    [
        ("x86_64-linux-gnu-gcc-13", 13),
        ("aarch64-linux-gnu-g++-9", 9),
        ("gcc-7.5", 7),
        ("gcc", 0),
        ("clang-18", 0),
        ("gcc-ar-13", 0),
    ],
)
def test_gcc_by_its_name(name: str, major: int) -> None:
    assert parse_major(name) == major


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert parse_limit(text) >= 0
    assert parse_major(text) >= 0
    assert isinstance(parse_listeners(text, 29500), tuple)
    assert parse_bound(text, "/tmp/nvidia-mps/control") in (True, False)


def test_the_one_installed_gcc_gives_the_version() -> None:
    dirs = {"/usr/lib/gcc": ["x86_64-redhat-linux"], "/usr/lib/gcc/x86_64-redhat-linux": ["11"]}
    assert tools(dirs=dirs).host_compiler_gcc == 11
    both = {**dirs, "/usr/lib/gcc/x86_64-redhat-linux": ["11", "14"]}
    assert isinstance(tools(dirs=both).host_compiler_gcc, Missing)


def test_nvcc_takes_the_gcc_that_lies_beside_it() -> None:
    files = {"/usr/local/cuda/bin/nvcc": "", "/usr/bin/gcc-12": ""}
    found = tools(files=files, links={"/usr/local/cuda/bin/gcc": "/usr/bin/gcc-12"})
    assert (found.host_compiler, found.host_compiler_gcc) == ("/usr/local/cuda/bin/gcc", 12)


@pytest.mark.parametrize("flags", ["-ccbin /opt/gcc-12/bin/g++", "-allow-unsupported-compiler", "--compiler-bindir=/x"])
def test_flags_that_lift_the_limit(flags: str) -> None:
    assert tools(env={"NVCC_APPEND_FLAGS": flags}).limit_lifted
    assert not tools(env={"NVCC_APPEND_FLAGS": "-lineinfo"}).limit_lifted


def test_clang_is_no_gcc() -> None:
    assert absent(tools(files={"/usr/bin/clang-18": ""}, env={"CC": "clang-18"}).host_compiler_gcc)


def test_headers_are_the_business_of_the_systems_own_compiler() -> None:
    bare = {"/usr/include/stdlib.h": None}
    assert tools(files=bare).libc_headers is False
    assert absent(tools(files=bare, env={"CC": "/opt/conda/bin/x86_64-conda-linux-gnu-cc"}).libc_headers)
    assert absent(tools(files={**bare, "/usr/bin/gcc": None}, stats={"/usr/bin/gcc": None}).libc_headers)


def test_where_kernels_are_kept() -> None:
    default = caches()
    assert default["TORCHINDUCTOR_CACHE_DIR"].path == "/tmp/torchinductor_ubuntu"
    assert default["TRITON_CACHE_DIR"].path == "/home/ubuntu/.triton"
    there = {"/data/tmp": {"mode": 0o041777, "uid": 0, "gid": 0, "size": 0}}
    moved = caches(env={"TMPDIR": "/data/tmp/", "TRITON_HOME": "/data", "LOGNAME": "joe"}, stats=there)
    assert moved["TORCHINDUCTOR_CACHE_DIR"].path == "/data/tmp/torchinductor_joe"
    assert moved["TRITON_CACHE_DIR"].path == "/data/.triton"
    named = caches(env={"TRITON_CACHE_DIR": "/data/k", "TORCHINDUCTOR_CACHE_DIR": "/data/i"})
    assert {cache.path for cache in named.values()} == {"/data/k", "/data/i"}
    assert all(cache.mount_point == "/data" for cache in named.values())


def test_a_temporary_directory_that_is_not_there_is_passed_over() -> None:
    """As tempfile does: a batch system's TMPDIR that was not made, or is another user's."""
    gone = caches(env={"TMPDIR": "/scratch/job.4711"})
    assert gone["TORCHINDUCTOR_CACHE_DIR"].path == "/tmp/torchinductor_ubuntu"
    foreign = caches(
        env={"TMPDIR": "/data/tmp"},
        stats={"/data/tmp": {"mode": 0o040700, "uid": 1001, "gid": 1001, "size": 0}},
        answers={"access:/data/tmp": {"read": False, "write": False}},
    )
    assert foreign["TORCHINDUCTOR_CACHE_DIR"].path == "/tmp/torchinductor_ubuntu"


def test_a_home_that_is_the_root_directory() -> None:
    assert caches(env={"HOME": "/"})["TRITON_CACHE_DIR"].path == "/.triton"


def test_listeners_are_told_from_connections() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    tail = "00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n"
    assert parse_listeners(f"{head}   0: 0100007F:733C 00000000:0000 0A {tail}", 29500) == (1000,)
    assert parse_listeners(f"{head}   0: 0100007F:733C 0100007F:A001 01 {tail}", 29500) == ()
    assert parse_listeners(f"{head}   0: 0100007F:A001 0100007F:733C 0A {tail}", 29500) == ()


@pytest.mark.parametrize("port", ["x", "0", "65536", "-1", "2 9", ""])
def test_no_port_has_no_listeners(port: str) -> None:
    assert isinstance(port_listeners(port, 1.0), Missing)


def test_a_listener_of_this_machine_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert port_listeners(port, 1.0) == [os.getuid()]
    assert port_listeners(port, 1.0) == []


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_that_is_left_behind_is_told_from_one_that_is_held(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = str(tmp_path / "control")
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(path)
        server.listen()
        assert bound_socket(path, 1.0) is True
    assert bound_socket(path, 1.0) is False


@pytest.mark.parametrize("answer", ["1000", ["root"], {"uid": 0}])
def test_a_wrong_answer_is_unknown(answer: object) -> None:
    seen = load("healthy", env={"MASTER_PORT": "29500"}, answers={"port-listeners:29500": answer})
    assert judge(seen)["master-port-in-use"].verdict is Verdict.UNKNOWN


def test_a_recording_without_the_answer_is_unknown() -> None:
    assert judge(load("healthy", env={"MASTER_PORT": "29500"}))["master-port-in-use"].verdict is Verdict.UNKNOWN


def test_a_directory_in_place_of_a_file() -> None:
    places = ("/usr/local/cuda/include/crt/host_config.h", "/usr/include/stdlib.h")
    seen = load(
        "healthy",
        files={**{f"{place}/inside": "x" for place in places}, "/usr/local/cuda/bin/nvcc": ""},
        dirs={"/tmp/nvidia-mps": ["control"]},
        stats={"/tmp/nvidia-mps/control": {"mode": 1, "uid": 0, "gid": 0, "size": 0}},
        env={"MASTER_PORT": "29500"},
    )
    assert not isinstance(seen.software, Missing)
    assert all(result.verdict is not Verdict.CRASHED for result in judge(seen).values())


def test_what_lies_below_a_closed_directory_is_not_writable() -> None:
    closed = {"error": "denied"}
    env = {"TRITON_CACHE_DIR": "/srv/other/.triton"}
    cache = caches(env=env, stats={"/srv/other/.triton": closed, "/srv/other": {"mode": 0o40700, "uid": 7, "gid": 7, "size": 0}})
    assert cache["TRITON_CACHE_DIR"].writable is False


def test_a_file_in_the_place_of_a_cache_is_not_writable() -> None:
    found = caches(
        env={"TRITON_CACHE_DIR": "/scratch/triton"}, stats={"/scratch/triton": {"mode": 0o100666, "uid": 0, "gid": 0, "size": 2}}
    )
    assert found["TRITON_CACHE_DIR"].writable is False


def test_without_a_driver_the_usual_place_counts_where_it_stands() -> None:
    """torch.compile for CPUs: a directory that root made is not this user's to write."""
    of_root = {"/tmp/torchinductor_joe": {"mode": 0o40700, "uid": 0, "gid": 0, "size": 0}}
    closed = {"access:/tmp/torchinductor_joe": {"read": False, "write": False}}
    without = {"/proc/driver/nvidia/version": None}
    found = caches(files=without, env={"LOGNAME": "joe"}, stats=of_root, answers=closed)
    assert [(cache.path, cache.writable) for cache in found.values()] == [("/tmp/torchinductor_joe", False)]
    assert absent(software(files=without, env={"LOGNAME": "jane"}, stats=of_root).compile_caches)
