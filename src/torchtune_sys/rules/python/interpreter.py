"""Rules on the Python interpreter: can torch be installed in it, and does it start."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.actions import Advice, Install
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, need, need_if_there
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.gates import torch_build
from torchtune_sys.rules.torch.common import installed


@rule(
    id="interpreter-does-not-start",
    title="The training interpreter does not start",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="recreate the environment: its base Python was removed or replaced (python3 -m venv --upgrade DIR, or uv venv)"
        ),
    ),
)
def interpreter_does_not_start(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """The interpreter given by --python or found on PATH cannot be run, or exits with an error.

    Why it matters
        A virtual environment depends on the Python it was created from; if an upgrade removes that Python, nothing in the
        environment works. Each Python ends at its start where a variable of its own (PYTHONMALLOC, PYTHONIOENCODING, PYTHONHASHSEED, PYTHONHOME …)
        has a value that it refuses.

    When to leave it
        Never; if this is not the interpreter you train with, specify another with --python.

    References
        https://docs.python.org/3/library/venv.html; https://docs.python.org/3/using/cmdline.html#environment-variables
    """
    python = need(s.python)
    if isinstance(python.executable, Missing) and python.executable.source == "--python":
        yield Evidence(subject="--python", seen=python.executable.detail, wanted="an interpreter", source="--python")
        return
    path = need(python.executable)
    found = python.version
    if isinstance(found, Missing) and found.why in (Why.NO_TOOL, Why.DENIED, Why.FAILED, Why.UNPARSED):
        if found.why is Why.DENIED and found.remedy:
            need(found)  # root would not start it: whether it starts for its user is not known
        small = _small_stack(s)
        yield Evidence(
            subject=path,
            seen=(found.detail or found.why.value) + _cause(s, found, small),
            wanted="a Python that starts",
            source=found.source,
            fix=_fix(s, found, small),
        )
        return
    yield Evidence(subject=path, seen=f"Python {need(found)}", verdict=Verdict.PASS)


def _cause(s: Snapshot, found: Missing, small_stack: int) -> str:
    refused = _refused_variable(s, found.detail)
    return f", with {refused}" if refused else f", with a stack of {small_stack >> 10} KiB (ulimit -s)" if small_stack else ""


def _fix(s: Snapshot, found: Missing, small_stack: int) -> tuple[Advice, ...]:
    if found.why is Why.DENIED:
        return _CLOSED if "may not enter" in found.detail else _NOT_EXECUTABLE
    if refused := _refused_variable(s, found.detail):
        return (Advice(text=f"unset {refused.partition('=')[0]}, or give it a value that this Python takes"),)
    return (Advice(text="ulimit -s 8192 before the job, which is what most systems give"),) if small_stack else ()


_WORD = pattern(r"\w+")
_UNNAMED = (("unknown encoding", ("PYTHONIOENCODING",)), ("'encodings'", ("PYTHONHOME", "PYTHONPLATLIBDIR")))
"""What CPython says of variables that it does not name (pylifecycle.c): of output's encoding, and of where its library is."""


def _refused_variable(s: Snapshot, detail: str) -> str:
    """Return NAME=VALUE of the variable because of which an interpreter ends at its start; "" where none is known to be."""
    env = variables_told(s)
    words = set(_WORD.findall(detail))
    named = [name for name in env if name.startswith("PYTHON") and name in words]
    meant = [name for words, names in _UNNAMED if words in detail for name in names if env.get(name)]
    return next((f"{name}={env[name]}" for name in (*named, *meant)), "")


_NOT_EXECUTABLE = (
    Advice(text="chmod a+rx the interpreter and the directories on the way, or mount its file system without noexec"),
)
_CLOSED = (
    Advice(
        text="install the base Python where every user may read it, and create the environment from that one (uv: "
        "UV_PYTHON_INSTALL_DIR=/opt/python uv python install, then uv venv --clear; never below /root)"
    ),
    Advice(text="or let its users in: chmod o+x the first directory on the way that they may not enter, and those below it"),
)
_LEAST_STACK = 1 << 20


def _small_stack(s: Snapshot) -> int:
    """Return the limit on the stack in bytes where it is so low that no interpreter starts well; else 0."""
    limit = None if isinstance(s.limits, Missing) else s.limits.limits.get("stack")
    soft = None if limit is None or isinstance(limit, Missing) else limit.soft
    return soft if soft is not None and soft < _LEAST_STACK else 0


@rule(
    id="python-start-reports-errors",
    title="Python reports an error each time it starts",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="a .pth file: install the package that it belongs to again, or remove the file (pip uninstall, then delete what is left)"
        ),
        Advice(
            text="sitecustomize, usercustomize: mend the module, or take its directory out of PYTHONPATH (python -v shows which file it is)"
        ),
    ),
)
def python_start_reports_errors(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """A line of a .pth file, sitecustomize or usercustomize fails while the interpreter starts; Python says so and goes on without it.

    Why it matters
        The rest of that file is ignored: the packages that it makes known (editable installations, most of all) cannot be imported. Every rank and every
        worker prints the error.

    When to leave it
        Nothing that the training imports depends on it.

    References
        https://docs.python.org/3/library/site.html
    """
    found = need_if_there(need(s.python).start_errors, "the interpreter was not started for this look")
    for line in found:
        yield Evidence(subject="Python's start", seen=line, wanted="no error", source="stderr of the interpreter")
    if not found:
        yield Evidence(subject="Python's start", seen="no error", verdict=Verdict.PASS, source="stderr of the interpreter")


@rule(
    id="no-wheel-for-python",
    title="There is no torch wheel for this interpreter",
    severity=Severity.WARNING,
    cause="no-wheel-for-python",
    fix=(Install(text="create an environment with a Python that torch has wheels for, and install torch there"),),
)
def no_wheel_for_python(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch is not installed, and no release has a wheel for this Python: too new, too old, 32-bit, PyPy or musl.

    Why it matters
        pip install torch fails with "Could not find a version that satisfies the requirement torch (from versions: none)".

    When to leave it
        You train with another interpreter (--python), or build torch from source.

    References
        File names of torch's wheels on PyPI.
    """
    python = need(s.python)
    if not absent(python.torch):
        need(python.torch)
        raise NotApplicable("torch is installed")
    found = need(python.version)
    reason = _unsuitable(python, found) or _refused(python, found)
    newest = releases.newest()
    pythons = ", ".join(f"CPython 3.{abi.removeprefix('cp3')}" for abi in newest.abis if not abi.endswith("t"))
    yield Evidence(
        subject=f"Python {found}",
        seen=reason or "torch is not installed",
        wanted=f"for torch {newest.torch}: {' '.join(newest.abis)}" if reason else "",
        verdict=Verdict.FAIL if reason else Verdict.PASS,
        source=newest.source,
        fix=(Install(text=f"create an environment with one of {pythons}, and install torch {newest.torch} there"),)
        if reason
        else (),
    )


def _unsuitable(python: PythonFacts, found: str) -> str:
    if isinstance(python.implementation, str) and python.implementation not in ("", "cpython"):
        return f"{python.implementation}: wheels are for CPython"
    if isinstance(python.machine, str) and python.machine not in ("", "x86_64", "aarch64"):
        return f"no wheels for {python.machine}"
    if absent(python.glibc):
        return "no glibc (musl): wheels are for glibc"
    numbers = version(found)
    abi = f"cp{numbers[0]}{numbers[1]}" if len(numbers) > 1 else ""
    free = "t" if python.free_threaded is True else ""
    offered = {name for release in releases.releases() for name in release.abis}
    if abi and abi + free not in offered and f"{abi}m" not in offered:
        return f"no release has wheels for {abi}{free}"
    return ""


def _refused(python: PythonFacts, found: str) -> str:
    """Return the line in which pip found nothing for the first patch releases of a Python, from a time when torch had no wheels for it yet."""
    said = next((line for line in python.complaints if "No matching distribution found for torch" in line), "")
    numbers = version(found)
    return f"a new Python, and pip says: {said}" if said and len(numbers) > 2 and numbers[1] >= 8 and numbers[2] <= 2 else ""


@rule(
    id="glibc-too-old",
    title="The C library is older than the installed binaries need",
    severity=Severity.ERROR,
    cause="glibc-too-old",
    fix=(Advice(text="run in a container, or on a distribution release, with a newer glibc; or install a build for this one"),),
)
def glibc_too_old(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch's wheel was built for a newer glibc than the interpreter runs on, or the loader reported that for another package.

    pip checks this when it installs; copied environments, shared file systems and uv's cross-installs do not.

    Why it matters
        "version `GLIBC_2.28' not found": the library is not loaded. torch's x86_64 wheels need glibc 2.28 from 2.7 on
        (of 2.6 those for CUDA 12.6, ROCm and XPU).

    When to leave it
        Never; a newer glibc cannot be installed alongside the old one.

    References
        PEP 600; WHEEL files of torch's wheels.
    """
    python = need(s.python)
    said = [line for line in python.complaints if "GLIBC_2." in line and "not found" in line]
    for line in said:
        oldest = show(version(line.partition("GLIBC_")[2]))
        yield Evidence(subject="loader", seen=line, wanted=f"glibc {oldest}", source="report", fix=_with_glibc(oldest))
    if said:
        return
    torch_build(s)
    item = installed(s).get("torch")
    tags = () if item is None else item.tags
    wanted = min((version(tag.partition("manylinux_")[2].replace("_", ".")) for tag in tags if "-manylinux_" in tag), default=())
    if not wanted:
        raise NotApplicable("the installed torch does not say which glibc it was made for")
    found = need(python.glibc)
    enough = version(found) >= wanted
    yield Evidence(
        subject="glibc",
        seen=found,
        wanted=f">= {show(wanted)}",
        verdict=Verdict.PASS if enough else Verdict.FAIL,
        source="WHEEL of torch",
        fix=() if enough else _with_glibc(show(wanted)),
    )


def _with_glibc(oldest: str) -> tuple[Advice, ...]:
    return (
        Advice(
            text=f"run in a container, or on a distribution release, with glibc {oldest} or later; or install a build for this one"
        ),
    )


_VERSIONED = pattern(r"/python(3\.[0-9]{1,2})t?/(?:site|dist)-packages")


@rule(
    id="pip-leftovers",
    title="An interrupted pip run left parts of a package behind",
    severity=Severity.WARNING,
    fix=(
        Advice(text="delete the directories that are left behind"),
        Install(text="then pip install --force-reinstall the package that they belong to"),
    ),
)
def pip_leftovers(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """pip renames what it replaces (torch to ~orch) and deletes it at the end; directories with such names are leftovers.

    Why it matters
        "WARNING: Ignoring invalid distribution -orch", gigabytes of wasted disk space, and possibly a package that is a mix of
        two versions. The usual cause is a full disk or a file in use on NFS.

    When to leave it
        pip is still running.

    References
        https://github.com/pypa/pip/issues/9628
    """
    for path in need(need(s.python).leftovers):
        yield Evidence(subject=path, seen="left behind", wanted="not there", source=path)


@rule(
    id="packages-of-another-python",
    title="The interpreter also searches the package directory of another Python version",
    severity=Severity.WARNING,
    fix=(
        Advice(text="unset PYTHONPATH, or take that directory out of it (module unload, the shell's profile)"),
        Advice(text="or install what is used from there with the interpreter that trains"),
    ),
)
def packages_of_another_python(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """sys.path has a site-packages of another Python version, mostly by PYTHONPATH, in front of the interpreter's own.

    Why it matters
        Compiled packages found there cannot be loaded: import numpy or torch fails with "No module named 'numpy._core._multiarray_umath'", or
        half of a package comes from each version. Environment modules of clusters set PYTHONPATH for their own Python.

    When to leave it
        Only packages without compiled parts lie there, and they suit this version.

    References
        https://docs.python.org/3/using/cmdline.html#envvar-PYTHONPATH; PEP 3149 (names of extension modules)
    """
    python = need(s.python)
    mine = ".".join(need(python.version).split(".")[:2])
    entries = need(python.sys_path)
    there = [entry for entry in entries if entry not in python.entries_gone]
    others = [entry for entry in there if (found := _VERSIONED.search(entry)) and found[1] != mine]
    for entry in others:
        yield Evidence(
            subject=entry, seen=f"before or among the packages of Python {mine}", wanted="not on sys.path", source="sys.path"
        )
    if not others:
        yield Evidence(
            subject="sys.path", seen=f"no directory of another version than {mine}", verdict=Verdict.PASS, source="sys.path"
        )


_SHARED = ("nfs", "smb", "remote", "parallel", "object-store")
_SERVES_A_FEW = ("nfs", "parallel")


@rule(
    id="environment-on-network-filesystem",
    title="The Python environment is on a network file system",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="pack the environment into one file that is mounted (a container image, squashfs), or unpack it on a local disk"
        ),
        Advice(
            text="or keep it there, and read its libraries once sequentially before the ranks start (cat …/lib/**/*.so* > /dev/null)"
        ),
    ),
    params=(
        Param(
            "min_nodes",
            8,
            "number of hosts in the job, all loading the environment at once, from which a shared file system is reported",
        ),
    ),
)
def environment_on_network_filesystem(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """torch is installed on an object store, SMB or sshfs; or on NFS, Lustre, GPFS or CephFS, and many hosts start at once.

    Most clusters keep environments on a shared file system, which serves a few hosts well: it is reported for jobs with many.

    Why it matters
        "import torch" opens thousands of small files and maps gigabytes of libraries, and each page it touches is a separate
        request to the server. All ranks of all nodes do this at the same time: startup takes many seconds to minutes, and late
        ranks run into the rendezvous timeout.

    When to leave it
        Jobs start rarely, or the start was measured to be fast enough (time python -c 'import torch' on a node with a cold
        cache), and the job is small.

    References
        https://github.com/Garden-AI/rootstock/issues/167 (Lustre: 350 kB/s by page faults, 13 MB/s when read in order, both cold)
        https://eth-cscs.github.io/cscs-docs/guides/storage (virtual environments on Lustre)
        https://support.crusoecloud.com/hc/en-us/articles/48530705971739 (conda environments on NFS)
    """
    torch_build(s)
    place = need(need(s.python).carrier)
    kind = need(place.kind)
    shared = kind in _SHARED and "cvmfs" not in place.filesystem  # which keeps what it has read on a local disk
    if shared and kind in _SERVES_A_FEW and (s.intent.nodes or 1) < int(p["min_nodes"]):
        raise NotApplicable(
            f"{place.filesystem} on {place.mount_point} serves a few hosts well, and the job is not known to have many"
        )
    yield Evidence(
        subject="the directory of torch",
        seen=f"{place.filesystem} on {place.mount_point}",
        wanted="a local file system, or one file that is mounted" if shared else "",
        verdict=Verdict.FAIL if shared else Verdict.PASS,
        source="/proc/self/mountinfo",
    )
