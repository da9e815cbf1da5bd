"""Operating system, kernel and kind of machine."""

from __future__ import annotations

from torchtune_sys.formats.architecture import architecture_of
from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.values import Missing, Why, fact, known, need
from torchtune_sys.probes.system import machine, os_release

CPUINFO = "/proc/cpuinfo"


def probe(host: Host, intent: Workload) -> SystemFacts:
    info = host.text(CPUINFO)
    kernel = _uname(host, "release", "/proc/sys/kernel/osrelease")
    if isinstance(kernel, Missing):
        kernel = _kernel_of_version(host, kernel)
    architecture = _machine(host, kernel, info)
    return SystemFacts(
        os=os_release.read_os(host),
        kernel=kernel,
        machine=architecture,
        hostname=_uname(host, "nodename", "/proc/sys/kernel/hostname", "/etc/hostname"),
        cmdline=_cmdline(host),
        glibc=_glibc(host, architecture),
        container=machine.container(host),
        hypervisor=machine.hypervisor(host, kernel, info),
        uptime_s=_uptime(host),
        init=host.word("/proc/1/comm"),
        today=_today(host),
        image_tool=machine.image_tool(host),
    )


def parse_cmdline(text: str) -> tuple[str, ...]:
    """Return the kernel's boot arguments; double quotes protect blanks (lib/cmdline.c, next_arg), and what follows ``--`` is for init (kernel/params.c).

    >>> parse_cmdline('BOOT_IMAGE=/vmlinuz root=UUID=ab ro dyndbg="file x.c +p" quiet -- mem=1\\n')
    ('BOOT_IMAGE=/vmlinuz', 'root=UUID=ab', 'ro', 'dyndbg=file x.c +p', 'quiet')
    """
    words: list[str] = []
    word, quoted, begun = "", False, False
    for character in text.strip("\0\n"):
        if character == '"':
            quoted, begun = not quoted, True
        elif character.isspace() and not quoted:
            if word == "--":
                return tuple(words)
            if word or begun:
                words.append(word)
            word, begun = "", False
        else:
            word += character
    return (*words, word) if word or begun else tuple(words)


def parse_version_line(text: str) -> Fact[str]:
    """Return the release in /proc/version.

    >>> parse_version_line("Linux version 4.14.0-49.el7a.ppc64le (mockbuild@x) (gcc version 4.8.5) #1 SMP")
    '4.14.0-49.el7a.ppc64le'
    """
    words = text.split(" ", 3)
    if len(words) >= 3 and words[:2] == ["Linux", "version"] and words[2][:1].isdecimal():
        return words[2].strip()[:200]
    return Missing(Why.UNPARSED, "/proc/version", text[:60])


def parse_uptime(text: str) -> Fact[float]:
    """Return the seconds since boot, from /proc/uptime.

    >>> parse_uptime("350735.47 234388.90\\n")
    350735.47
    """
    word = text.split(" ", 1)[0].strip()
    if word.replace(".", "", 1).isdecimal() and len(word) < 30:
        return float(word)
    return Missing(Why.UNPARSED, "/proc/uptime", text[:60])


def _uname(host: Host, field: str, *files: str) -> Fact[str]:
    answer = host.ask(queries.UNAME)
    if isinstance(answer, dict) and isinstance(answer.get(field), str):
        return str(answer[field])
    for path in files:
        found = host.word(path)
        if not isinstance(found, Missing):
            return found
    if isinstance(answer, Missing):
        return answer
    lacks = isinstance(answer, dict) and field not in answer
    return Missing(Why.NOT_RECORDED if lacks else Why.UNPARSED, queries.UNAME, f"holds no {field}")


def _kernel_of_version(host: Host, missing: Missing) -> Fact[str]:
    text = host.text("/proc/version")
    if isinstance(text, Missing):
        return missing
    return parse_version_line(text)


def _machine(host: Host, kernel: Fact[str], info: Fact[str]) -> Fact[str]:
    found = _uname(host, "machine")
    if not isinstance(found, Missing):
        return found
    texts = (known(fact, "") for fact in (kernel, info))
    return architecture_of(*texts) or found


@fact
def _cmdline(host: Host) -> Fact[tuple[str, ...]]:
    return parse_cmdline(need(host.text("/proc/cmdline")))


def _glibc(host: Host, architecture: Fact[str]) -> Fact[str]:
    answer = host.ask(queries.GLIBC)
    if not isinstance(answer, Missing):
        return str(answer)
    if answer.why is Why.ABSENT and host.live:
        return answer
    found = os_release.glibc_of_files(host, architecture)
    # A complete recording that lacks the answer lacks it because the C library is another one.
    return answer if isinstance(found, Missing) and found.why is not Why.ABSENT else found


@fact
def _uptime(host: Host) -> Fact[float]:
    return parse_uptime(need(host.text("/proc/uptime")))


@fact
def _today(host: Host) -> Fact[str]:
    answer = need(host.ask(queries.TODAY))
    text = str(answer)
    if len(text) == 10 and text.replace("-", "").isdecimal() and text[4] == text[7] == "-":
        return text
    return Missing(Why.UNPARSED, queries.TODAY, text[:40])
