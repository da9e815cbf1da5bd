"""Say a line in the words that most programs use: those of glibc, GCC and bash, in English."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtune_sys.knowledge import operations, translations

_NAMED = {
    **{
        name: operations.ERRORS[name][1]
        for name in ("ENOSPC", "EDQUOT", "EMFILE", "ENOMEM", "EADDRINUSE", "ECONNREFUSED", "EHOSTUNREACH", "EACCES", "EPERM")
    },
    "ENOLCK": "No locks available",
    "ESTALE": "Stale file handle",
}
_ERROR_NAMES = re.compile(
    rf"(?:^|[:='\"(\[{{,-] ?|\b(?:errno(?!\.)|error|code|with|got|returned|returns|failed)\b.{{0,3}})(?P<name>{'|'.join(_NAMED)})\b(?! (?:when|if|is)\b)"
)
"""errno(3), where a program prints the name alone; not where somebody speaks of it."""


_NO_HEADER = (
    re.compile(r"(?:include file|[Cc]annot open include file:|(?<=error: )|(?<=error : ))\s?['\"](?P<name>[\w./+-]{3,100}\.h(?:pp|xx|)?)['\"](?: file)?(?: not found|: No such file)"),
    re.compile(r"(?<=fatal error: )(?P<name>[\w./+-]{3,100}\.h(?:pp|xx|)?) : No such file or directory"),
    re.compile(r"(?:cannot|could not) open (?:source|include) file \"(?P<name>[\w./+-]{3,100}\.h(?:pp|xx|)?)\""),
)  # fmt: skip
"""How TinyCC, MSVC, clang, GCC in French and EDG (nvcc) say that a header is not there."""


def _as_gcc_says(words: str) -> str:
    """With GCC's words for a header that is not there.

    >>> _as_gcc_says("Include/Python.h:12: error: include file 'pyconfig.h' not found")
    'Include/Python.h:12: error: fatal error: pyconfig.h: No such file or directory'
    """
    for pattern in _NO_HEADER:
        words = pattern.sub(lambda found: f"fatal error: {found['name']}: No such file or directory", words)
    return words


def _as_libc_says(words: str) -> str:
    """With the C library's words for errors, in its own letters.

    >>> _as_libc_says("open /dev/kfd: permission denied")
    'open /dev/kfd: Permission denied'
    """
    lower = words.lower()
    for error in translations.ERRORS:
        at = lower.find(error.lower())
        if at >= 0 and not words.startswith(error, at):
            words = words[:at] + error + words[at + len(error) :]
    return _ERROR_NAMES.sub(lambda found: found[0].replace(found["name"], f"{_NAMED[found['name']]} ({found['name']})"), words)


_NUMBERED = re.compile(r"(?P<number>\[Errno (?P<of>\d{1,3})\]) (?P<words>[^:'\"]{3,80}?)(?P<rest>$|[:'\"]| ?\(| ->)")
"""An OSError of Python's: its number says the same in every language."""


_WORDS = {
    **dict(operations.ERRORS.values()),
    6: "No such device or address",
    8: "Exec format error",
    9: "Bad file descriptor",
    10: "No child processes",
    20: "Not a directory",
    21: "Is a directory",
    29: "Illegal seek",
    31: "Too many links",
    32: "Broken pipe",
    36: "File name too long",
    37: "No locks available",
    38: "Function not implemented",
    40: "Too many levels of symbolic links",
    103: "Software caused connection abort",
    104: "Connection reset by peer",
    105: "No buffer space available",
    107: "Transport endpoint is not connected",
    116: "Stale file handle",
    524: "Unknown error 524",
}
"""What strerror(3) of glibc says of an error of Linux, wherever this runs: musl has other words for many."""


def _by_number(found: re.Match[str]) -> str:
    words = _WORDS.get(int(found["of"]))
    return f"{found['number']} {words}{found['rest']}" if words else found[0]


_PROGRAM = r"(?:\S{0,80}/)?(?P<name>[\w+][\w.+-]{0,30}?)(?:\.exe)?"
_NO_PROGRAM = (
    re.compile(rf"^\W*g?make(?:\[\d+\])?: (?:execvp: )?{_PROGRAM}: (?:[Cc]ommand not found|No such file or directory)\W*$"),
    re.compile(rf"(?:\bcommand not found: |\bUnknown command:? ['\"]?){_PROGRAM}['\"]?\W*$"),
    re.compile(rf"['\"‘`]{_PROGRAM}['\"’`](?: is not recognized as an? (?:internal or external command|name of a cmdlet)|: executable file not found|: command not found|: No such file or directory$)"),
    re.compile(rf"^\W*{_PROGRAM} ?: The term '.{{1,80}}' is not recognized as (?:the|a) name of a cmdlet"),
    re.compile(rf"\b[Cc]ommand '{_PROGRAM}' not found\b"),
    re.compile(rf"\bwhich: no {_PROGRAM} in \("),
    re.compile(rf"^\W*[\"'«„]?{_PROGRAM}[\"'»“]? ?(?:不是内部或外部命令|は、内部コマンドまたは外部コマンド|은\(는\) 내부 또는 외부 명령|не является внутренней или внешней|n'est pas reconnu en tant que commande|no se reconoce como un comando|não é reconhecido como um comando|non è riconosciuto come comando|nie jest rozpoznawana jako polecenie)"),
    re.compile(rf"^\W*Der Befehl [\"„]{_PROGRAM}[\"“] ist entweder falsch geschrieben"),
)  # fmt: skip
"""How make, zsh, fish, cmd.exe, PowerShell, runc, env and command-not-found say that a program is not there."""


def _as_bash_says(words: str) -> str:
    """With bash's words for a program that is not there.

    >>> _as_bash_says("make: /usr/local/cuda/bin/nvcc: No such file or directory")
    'bash: nvcc: command not found'
    """
    for pattern in _NO_PROGRAM:
        found = pattern.search(words)
        if found is not None:
            return f"{words[: found.start()]}bash: {found['name']}: command not found{words[found.end() :]}"
    return words


_UNMET = re.compile(
    r"^\W{0,4}The package `(?P<package>[\w.-]{1,60})` requires `(?P<wanted>(?P<name>[\w.-]{1,60})[^`]{0,200})`, but (?:`(?P<found>[^`]{1,40})` is installed|it's not installed)"
)


def _as_pip_says(words: str) -> str:
    """With pip's words for a package that lacks another one: uv's check tells no release of it.

    >>> _as_pip_says("The package `torch` requires `filelock`, but it's not installed")
    'torch 0 requires filelock, which is not installed.'
    """
    found = _UNMET.match(words)
    if found is None:
        return words
    told = f"but you have {found['name']} {found['found']} which is incompatible" if found["found"] else "which is not installed"
    return f"{found['package']} 0 requires {found['wanted']}, {told}."


_NVML = re.compile(r"\bNVMLError_(?P<name>[A-Z]\w{2,40})\b")


def _as_nvml_says(words: str) -> str:
    """With the names of nvml.h for NVML's errors.

    >>> _as_nvml_says("pynvml.NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.")
    'pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: RM has detected an NVML/RM version mismatch.'
    """
    return _NVML.sub(lambda found: "NVML_ERROR" + re.sub(r"(?=[A-Z])", "_", found["name"]).upper(), words)


def in_common_words(line: str, foreign: Sequence[translations.Translation]) -> str:
    """Return the line in these words; ``foreign``: the messages in other languages that its text has.

    >>> in_common_words("OSError: [Errno 24] Слишком много открытых файлов: '/tmp/x'", ())
    "OSError: [Errno 24] Too many open files: '/tmp/x'"
    """
    words = _NUMBERED.sub(_by_number, translations.in_english(line, foreign))
    return _as_nvml_says(_as_pip_says(_as_bash_says(_as_gcc_says(_as_libc_says(words)))))
