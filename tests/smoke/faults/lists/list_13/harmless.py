"""What is odd and breaks nothing: the smoke test must say so."""

from __future__ import annotations

from collections.abc import Mapping

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, grouped, tool, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row


def _started_by(*words: str) -> Inject:
    def inject(bench: Bench) -> None:
        bench.before += [tool(words[0]), *words[1:]]

    return inject


def _blank(bench: Bench) -> None:
    (bench.folder / "my files").mkdir()
    bench.env["TMPDIR"] = str(bench.folder / "my files")


_LONG = "trainer-" + "-".join(f"{number:02}" for number in range(18))
_WAYS: Mapping[str, tuple[str, Inject]] = {
    "quota-of-one-and-a-half": ("The cgroup has 1.5 CPUs", grouped("cpu", cpu_cfs_quota_us="150000")),
    "cgroup-of-3-gb": ("The cgroup has 3 GB of memory, and no swap is there", grouped("memory", memory_limit_in_bytes=str(3 << 30))),
    "nice-19": ("The test runs at nice 19", _started_by("nice", "-n", "19")),
    "old-locale": ("An old locale that is not installed", variables(LANG="de_DE.ISO-8859-1", LC_ALL="de_DE.ISO-8859-1", LANGUAGE="de")),
    "home-missing": ("HOME is no directory", variables(HOME="/nonexistent/user")),
    "read-only-directory": ("The working directory is read only",
                            unshared("--mount", "mkdir {folder}/cwd\nmount -t tmpfs -o ro tmpfs {folder}/cwd\ncd {folder}/cwd")),
    "one-cpu-for-all": ("All is bound to one CPU by taskset", _started_by("taskset", "-c", "1")),
    "umask-077": ("The umask is 077", _started_by("sh", "-ec", 'umask 077\nexec "$@"', "sh")),
    "long-hostname": (f"The host's name has {len(_LONG)} characters",
                      unshared("--mount --uts", f"echo 127.0.0.1 localhost {_LONG} > {{folder}}/hosts\nmount --bind {{folder}}/hosts /etc/hosts\nhostname {_LONG}")),
    "blank-and-nohup": ("The directory for temporary files has a blank in its name, and SIGINT and SIGHUP are ignored, as in the background",
                        all_of(_blank, _started_by("sh", "-ec", "trap '' INT HUP\nexec \"$@\"", "sh"))),
}  # fmt: skip
ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means="harmless", stages="") for name, (what, inject) in _WAYS.items()
)
