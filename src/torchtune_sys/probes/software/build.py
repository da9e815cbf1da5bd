"""Find the compilers and caches of torch.compile, Triton and torch.utils.cpp_extension."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import BuildTools
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.python.cuda_libraries import nvcc
from torchtune_sys.probes.python.interpreter import which

_HEADER = "/usr/include/stdlib.h"
_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_LIFTING = ("-ccbin", "--compiler-bindir", "-allow-unsupported-compiler")


@fact
def tools(host: Host) -> Fact[BuildTools]:
    env = need(host.env())
    compiler = _host_compiler(host, env)
    flags = " ".join(env.get(name, "") for name in _FLAGS)
    return BuildTools(
        libc_headers=_libc_headers(host, env),
        host_compiler=compiler,
        host_compiler_gcc=compiler if isinstance(compiler, Missing) else _gcc_major(host, compiler),
        nvcc_gcc_limit=_limit(host, env),
        ninja=next(iter(which(host, env, ("ninja",))), "") or Missing(Why.ABSENT, "PATH", "no ninja on PATH"),
        limit_lifted=any(word in flags for word in _LIFTING),
    )


def _libc_headers(host: Host, env: Mapping[str, str]) -> Fact[bool]:
    """Compilers of conda, Nix and modules bring headers of their own, wherever they lie; so may CPATH."""
    found = next(iter(which(host, env, ("gcc", "clang", "cc"))), "")
    if env.get("CC") or env.get("CPATH") or env.get("C_INCLUDE_PATH") or not found.startswith(("/usr/bin/", "/bin/")):
        return Missing(Why.ABSENT, "PATH", "no compiler of the system's own is used")
    machine = host.ask(queries.UNAME)
    name = machine.get("machine") if isinstance(machine, dict) else ""
    if host.exists(_HEADER) is True or host.exists(f"/usr/include/{name}-linux-gnu/stdlib.h") is True:
        return True
    return host.exists(_HEADER)


def _host_compiler(host: Host, env: Mapping[str, str]) -> Fact[str]:
    """torch hands CC on as -ccbin (unix_cuda_flags in torch/utils/cpp_extension.py); else nvcc takes NVCC_CCBIN, or the gcc that lies
    beside it or on PATH (CUDA compiler driver manual, --compiler-bindir)."""
    named = env.get("CC", "") or env.get("NVCC_CCBIN", "")
    word = named.split()[0] if named.split() else ""
    if word.startswith("/"):
        folder = host.names(word)  # -ccbin may name a directory
        return word if isinstance(folder, Missing) else f"{word.rstrip('/')}/gcc"
    driver, _ = nvcc(host, env)
    beside = "" if word or isinstance(driver, Missing) else f"{driver.rpartition('/')[0]}/gcc"
    if beside and host.exists(beside) is True:
        return beside
    found = next(iter(which(host, env, (word or "gcc",))), "")
    return found or Missing(Why.ABSENT, "PATH", f"no {word or 'gcc'} on PATH")


@fact
def _gcc_major(host: Host, path: str) -> Fact[int]:
    """gcc's major version from its file's name, which Debian's tools lead to, or from the one directory of compilers that is installed."""
    real = need(host.real(path))
    name = real.rpartition("/")[2]
    if "clang" in name or "icx" in name or "icpx" in name or "nvc" in name:
        return Missing(Why.ABSENT, real, "not gcc")
    major = parse_major(name)
    if major:
        return major
    prefix = real.rpartition("/bin/")[0] if real.startswith("/") else ""
    found: set[int] = set()
    for library in ("lib/gcc", "lib64/gcc", "libexec/gcc"):
        folder = f"{prefix or '/usr'}/{library}"
        targets = host.names(folder)
        for target in () if isinstance(targets, Missing) else targets[:20]:
            versions = host.names(f"{folder}/{target}")
            found |= {
                int(v.partition(".")[0]) for v in (() if isinstance(versions, Missing) else versions[:50]) if _is_release(v)
            }
    if len(found) == 1:
        return found.pop()
    return Missing(Why.NOT_SUPPORTED, real, "its version is not written where it can be read", "gcc --version")


def _is_release(name: str) -> bool:
    return re.fullmatch(r"\d{1,2}(\.\d{1,2}){0,2}", name) is not None


def parse_major(name: str) -> int:
    """Return the major version that the name of a compiler ends with; 0 where it has none.

    >>> parse_major("x86_64-linux-gnu-g++-13"), parse_major("gcc-9.4"), parse_major("gcc")
    (13, 9, 0)
    """
    found = re.search(r"(?:gcc|g\+\+)-(\d{1,2})(?:\.\d{1,2}){0,2}$", name)
    return int(found[1]) if found else 0


@fact
def _limit(host: Host, env: Mapping[str, str]) -> Fact[int]:
    """nvcc stops at an #error of its own header, which says how far it goes; so no table goes stale."""
    path, _ = nvcc(host, env)
    real = need(path if isinstance(path, Missing) else host.real(path))
    home = real.rpartition("/bin/")[0]
    first: Missing | None = None
    for place in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"):
        for name in ("crt/host_config.h", "host_config.h"):  # before CUDA 9 there was no crt/
            text = host.text(f"{home}/{place}/{name}")
            if not isinstance(text, Missing):
                return parse_limit(text) or Missing(Why.UNPARSED, f"{home}/{place}/{name}", "names no version of gcc")
            first = text if first is None or first.why is Why.ABSENT else first
    if first is not None and first.why is not Why.ABSENT:
        return first
    return Missing(
        Why.ABSENT, f"{home}/include", "nvcc's headers lie elsewhere (a distribution's package, which brings its compiler)"
    )


def parse_limit(text: str) -> int:
    r"""Return the newest major version of GCC that CUDA's host_config.h accepts; 0 where it names none.

    >>> parse_limit("#if __GNUC__ > 13\n\n#error -- unsupported GNU version! gcc versions later than 13 are not supported!\n")
    13
    """
    found = re.search(r"gcc versions later than (\d{1,2})(?:\.\d{1,2})? are not supported", text)
    return int(found[1]) if found else 0
