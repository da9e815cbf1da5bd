"""One set of limits as nine shells, prlimit and the kernel print it: read alike, whatever the shell calls them and counts them in.

The tables are what the shells of Debian 12 printed below ``ulimit -Sn 2000 -Hn 5000 -Su 7000 -Sl 256 -Hl 512 -Ss 10240 -Sv 41943040 -St 3600`` and a limit of 1 GiB on files.
"""

from __future__ import annotations

import pytest

from torchtune_sys import engine
from torchtune_sys.formats.shell_limits import reported_limits
from torchtune_sys.model.facts.limits import SessionLimit

SOFT = {
    "cpu": 3600,
    "fsize": 1 << 30,
    "stack": 10 << 20,
    "memlock": 256 << 10,
    "nofile": 2000,
    "nproc": 7000,
    "as": 40 << 30,
    "core": 0,
}
BASH = """
core file size              (blocks, -c) 0
data seg size               (kbytes, -d) unlimited
file size                   (blocks, -f) 1048576
max locked memory           (kbytes, -l) 256
open files                          (-n) 2000
pipe size                (512 bytes, -p) 8
stack size                  (kbytes, -s) 10240
cpu time                   (seconds, -t) 3600
max user processes                  (-u) 7000
virtual memory              (kbytes, -v) 41943040
"""
DASH = """
time(seconds)        3600
file(blocks)         2097152
data(kbytes)         unlimited
stack(kbytes)        10240
coredump(blocks)     0
memory(kbytes)       unlimited
locked memory(kbytes) 256
process              7000
nofiles              2000
vmemory(kbytes)      41943040
locks                unlimited
rtprio               0
"""
ZSH = """
-t: cpu time (seconds)              3600
-f: file size (blocks)              2097152
-d: data seg size (kbytes)          unlimited
-s: stack size (kbytes)             10240
-c: core file size (blocks)         0
-m: resident set size (kbytes)      unlimited
-u: processes                       7000
-n: file descriptors                2000
-l: locked-in-memory size (kbytes)  256
-v: address space (kbytes)          41943040
-N 15: rt cpu time (microseconds)   unlimited
"""
TABLES = {
    "bash": BASH,
    "dash": DASH,
    "zsh": ZSH,
    "an old zsh": ZSH.replace("(kbytes)", "(kb)"),
    "ksh93": """
core file size (blocks)                 (-c)  0
cpu time (seconds)                      (-t)  3600
data size (Kibytes)                     (-d)  unlimited
file size (blocks)                      (-f)  2097152
locked address space (Kibytes)          (-l)  256
nofile                                  (-n)  2000
nproc                                   (-u)  7000
pipe buffer size (bytes)                (-p)  4096
stack size (Kibytes)                    (-s)  10240
swap size (Kibytes)                     (-w)  not supported
process size (Kibytes)                  (-v)  41943040
""",
    "mksh": """
-t: time(cpu-seconds)     3600
-f: file(blocks)          2097152
-c: coredump(blocks)      0
-d: data(KiB)             unlimited
-s: stack(KiB)            10240
-l: lockedmem(KiB)        256
-n: nofiles(descriptors)  2000
-p: processes             7000
-v: address-space(KiB)    41943040
""",
    "yash": """
-c: core file size (blocks)        0
-f: file size (blocks)             2097152
-l: locked memory (kbytes)         256
-n: open files                     2000
-s: stack size (kbytes)            10240
-t: CPU time (seconds)             3600
-u: user processes                 7000
-v: memory (kbytes)                41943040
""",
    "BusyBox": """
core file size (blocks)         (-c) 0
data seg size (kb)              (-d) unlimited
file size (blocks)              (-f) 2097152
max locked memory (kb)          (-l) 256
open files                      (-n) 2000
stack size (kb)                 (-s) 10240
cpu time (seconds)              (-t) 3600
max user processes              (-u) 7000
virtual memory (kb)             (-v) 41943040
""",
    "fish": """
Maximum size of core files created                              (kB, -c) 0
Maximum size of files created by the shell                      (kB, -f) 1048576
Maximum size that may be locked into memory                     (kB, -l) 256
Maximum number of open file descriptors                             (-n) 2000
Maximum stack size                                              (kB, -s) 10240
Maximum amount of CPU time in seconds                      (seconds, -t) 3600
Maximum number of processes available to current user               (-u) 7000
Maximum amount of virtual memory available to each process      (kB, -v) 41943040
""",
    "tcsh": """
cputime      1:00:00
filesize     1048576 kbytes
datasize     unlimited
stacksize    10240 kbytes
coredumpsize 0 kbytes
memoryuse    unlimited
vmemoryuse   41943040 kbytes
descriptors  2000
memorylocked 256 kbytes
maxproc      7000
""",
    "limit of zsh": """
cputime         1:00:00
filesize        1024MB
datasize        unlimited
stacksize       10MB
coredumpsize    0kB
maxproc         7000
descriptors     2000
memorylocked    256kB
addressspace    40960MB
""",
}
PRLIMIT = """
RESOURCE   DESCRIPTION                               SOFT       HARD UNITS
AS         address space limit                42949672960  unlimited bytes
CORE       max core file size                           0  unlimited bytes
CPU        CPU time                                  3600  unlimited seconds
FSIZE      max file size                       1073741824 1073741824 bytes
MEMLOCK    max locked-in-memory address space      262144     524288 bytes
NOFILE     max number of open files                  2000       5000 files
NPROC      max number of processes                   7000      96365 processes
STACK      max stack size                        10485760  unlimited bytes
"""


@pytest.mark.parametrize("shell", TABLES)
def test_every_shell_tells_the_same(shell: str) -> None:
    found = reported_limits(f"$ ulimit -a\n{TABLES[shell]}")
    assert {name: found.soft[name] for name in SOFT} == SOFT and not found.hard


@pytest.mark.parametrize(
    ("call", "shell"), [("ulimit -Ha", "bash"), ("ulimit -H -a", "dash"), ("ulimit -aH", "zsh"), ("limit -h", "tcsh")]
)
def test_a_table_of_hard_limits_is_no_table_of_soft_ones(call: str, shell: str) -> None:
    both = f"$ {call}\n{TABLES[shell]}\n$ {call.replace('H', 'S').replace(' -h', '')}\n{TABLES[shell].replace('2000', '1024')}"
    found = reported_limits(both)
    assert (found.soft["nofile"], found.hard["nofile"]) == (1024, 2000)


def test_prlimit_tells_both() -> None:
    found = reported_limits(PRLIMIT)
    assert {name: found.soft[name] for name in SOFT} == SOFT
    assert (found.hard["nofile"], found.hard["memlock"], found.hard["as"]) == (5000, 512 << 10, None)


def test_the_limits_of_a_process_by_its_number_are_no_sessions() -> None:
    rows = "Max open files            4096                 4096                 files     \nMax locked memory         65536                65536                bytes     \n"
    assert reported_limits(f"$ cat /proc/self/limits\n{rows}").soft == {"nofile": 4096, "memlock": 65536}
    assert reported_limits(f"$ cat /proc/12287/limits\n{rows}").soft == {"memlock": 65536}


@pytest.mark.parametrize(
    "text",
    ["time       3600\nfile  12\ndata 7\nstack 9\n", "max locked memory (-l) 256\n", "stack size   unlimited\n", "process 12\n"],
)
def test_words_that_may_stand_anywhere_tell_nothing(text: str) -> None:
    assert reported_limits(text) == ({}, {})


def test_a_report_keeps_both_limits() -> None:
    seen = engine.report(f"$ ulimit -Sa\n{DASH}\n$ ulimit -Ha\n{DASH.replace('2000', '524288')}", "test")
    assert seen is not None and seen.limits.limits["nofile"] == SessionLimit(soft=2000, hard=524288)  # type: ignore[union-attr]
