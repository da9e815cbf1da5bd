"""Parse the requirements of Python packages: Requires-Dist lines with their versions and markers (PEP 508)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.version import Version, version


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Normalised."""
    extras: tuple[str, ...]
    specifier: str
    """``==13.0.2``, ``<14,>=13.0.3`` or ``""``."""
    marker: str


@lru_cache(1024)  # several rules ask what the same distributions ask for
def parse(line: str) -> Requirement:
    """Parse one Requires-Dist line, in today's form or in that of old setuptools.

    >>> found = parse('cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"')
    >>> found.name, found.extras, found.specifier, found.marker
    ('cuda-toolkit', ('cublas', 'cudart'), '==13.0.2', 'platform_system == "Linux"')
    >>> parse("torch (==2.11.0)").specifier
    '==2.11.0'
    """
    head, _, marker = line.partition(";")
    head = head.replace("(", "").replace(")", "").strip()
    end = next((place for place, character in enumerate(head) if character in " [<>=!~"), len(head))
    name, rest = head[:end].lower().replace("_", "-").replace(".", "-"), head[end:].strip()
    extras: tuple[str, ...] = ()
    if rest.startswith("["):
        inside, _, rest = rest[1:].partition("]")
        extras = tuple(word.strip() for word in inside.split(","))
    return Requirement(name=name, extras=extras, specifier=rest.replace(" ", ""), marker=marker.strip())


def holds(marker: str, environment: Mapping[str, str]) -> bool | None:
    """Return whether a marker is true; None where it asks what the environment does not tell, or is written in an unknown way.

    >>> holds("(sys_platform == 'linux' or sys_platform == 'win32') and extra == 'cublas'", {"sys_platform": "linux", "extra": "cublas"})
    True
    >>> holds('platform_system == "Linux" and python_version < "3.13"', {"platform_system": "Linux", "python_version": "3.9"})
    True
    """
    return _holds(marker, frozenset(environment.items()))


@lru_cache(4096)
def _holds(marker: str, environment: frozenset[tuple[str, str]]) -> bool | None:
    """Several rules ask what one torch wants: the same hundred markers each."""
    tokens = list(_tokens(marker))
    if not tokens:
        return True
    try:
        found = _either(tokens, dict(environment))
    except (IndexError, RecursionError, KeyError):
        return None
    return None if tokens else found


@lru_cache(1024)
def _tokens(marker: str) -> tuple[str, ...]:
    """In reverse order, the next one last."""
    words: list[str] = []
    quote = ""
    for character in marker:
        if quote or character in "'\"":
            if not quote:
                quote = character
                words.append(character)
            else:
                words[-1] += character
                quote = "" if character == quote else quote
        elif character in "()":
            words += [character, ""]
        elif character.isspace():
            words.append("")
        elif words and words[-1] and words[-1][0] not in "'\"()" and (character in "<>=!~") == (words[-1][0] in "<>=!~"):
            words[-1] += character
        else:
            words.append(character)
    return tuple(word for word in reversed(words) if word)


def _either(tokens: list[str], environment: Mapping[str, str]) -> bool | None:
    found = [_both(tokens, environment)]
    while tokens and tokens[-1] == "or":
        tokens.pop()
        found.append(_both(tokens, environment))
    return True if True in found else None if None in found else False


def _both(tokens: list[str], environment: Mapping[str, str]) -> bool | None:
    found = [_one(tokens, environment)]
    while tokens and tokens[-1] == "and":
        tokens.pop()
        found.append(_one(tokens, environment))
    return False if False in found else None if None in found else True


def _one(tokens: list[str], environment: Mapping[str, str]) -> bool | None:
    if tokens[-1] == "(":
        tokens.pop()
        found = _either(tokens, environment)
        tokens.pop()
        return found
    left, operator, right = tokens.pop(), tokens.pop(), tokens.pop()
    name = left if left[0] not in "'\"" else right
    values = [word[1:-1] if word[0] in "'\"" else environment[word] for word in (left, right)]
    if name in ("python_version", "python_full_version", "platform_release"):
        return _compared(values[0], operator, values[1])
    return {"==": values[0] == values[1], "!=": values[0] != values[1]}[operator]


_PRE_RELEASE = pattern(r"(?<=[0-9])(a|b|rc)[0-9]+\+?$")


def _compared(found: str, operator: str, wanted: str) -> bool | None:
    """Compare two versions of a marker; None if that is unknown.

    A pre-release lies between its release and every earlier one, so beside any other release it compares as its own does.

    >>> _compared("3.13.0rc2", "<", "3.14"), _compared("3.13.0rc2", ">=", "3.12"), _compared("3.13.0rc2", "<", "3.13")
    (True, True, None)
    """
    release = _PRE_RELEASE.sub("", found)
    if release != found and satisfies(release, f"=={wanted.removesuffix('.*')}") is not False:
        return None
    return satisfies(release, operator + wanted)


_RELEASE = pattern(r"([0-9]{1,19}(?:\.[0-9]{1,19})*)(?:\.post([0-9]{1,9}))?")


def satisfies(found: str, specifier: str) -> bool | None:
    """Return whether a version fulfils a specifier; local suffixes do not count. None if that is unknown.

    >>> satisfies("13.1.0.3", "==13.1.0.3.*"), satisfies("2.4.0+cu118", "==2.3.1"), satisfies("13.2", "<14,>=13.0.3"), satisfies("3.8.2", "~=3.8.0")
    (True, False, True, True)
    >>> satisfies("2.26.2.post1", "==2.28.9"), satisfies("1.0.post1", "<=1.0"), satisfies("1.0.post1", ">=1.0"), satisfies("2.0rc1", "<3")
    (False, False, True, None)
    """
    plain = found.partition("+")[0]
    seen = _release(plain)
    if seen is None:
        return True if specifier.startswith("==") and specifier[2:].partition("+")[0] == plain else None
    verdicts = [_clause(seen, clause) for clause in specifier.split(",") if clause]
    return None if None in verdicts else all(verdicts)


def _release(plain: str) -> tuple[Version, int] | None:
    """Return the numbers of a release and of its post-release, -1 without one; None for what is neither."""
    parts = _RELEASE.fullmatch(plain)
    return None if parts is None else (version(parts[1]), int(parts[2] or -1))


def _clause(seen: tuple[Version, int], clause: str) -> bool | None:
    """Of a post-release: it is later than its release, but ``>`` the release does not take it in (PEP 440, exclusive ordered comparison)."""
    operator = clause[: len(clause) - len(clause.lstrip("<>=!~"))]
    wanted = clause[len(operator) :].partition("+")[0]
    star = wanted.endswith(".*")
    target = _release(wanted.removesuffix(".*"))
    if target is None:
        return None
    size = max(len(target[0]), len(seen[0]))
    left, right = ((numbers + (0,) * (size - len(numbers)), post) for numbers, post in (seen, target))
    short = len(target[0])
    match operator:
        case "==" | "===":
            return left[0][:short] == target[0] if star else left == right
        case "!=":
            return left[0][:short] != target[0] if star else left != right
        case "~=":
            return left >= right and left[0][: short - 1] == target[0][:-1]
        case ">":
            return left > right and (left[0] != right[0] or target[1] >= 0)
        case "<" | "<=" | ">=":
            return {"<": left < right, "<=": left <= right, ">=": left >= right}[operator]
        case _:
            return None


def asked_for(item: Distribution, environment: Mapping[str, str], others: Mapping[str, Distribution]) -> Iterator[Requirement]:
    """Yield the requirements of ``item`` that apply here, including those behind the extras of cuda-toolkit, by which torch requires NVIDIA's libraries since 2.11."""
    for line in item.requires:
        wanted = parse(line)
        if holds(wanted.marker, {"extra": "", **environment}) is not True:
            continue
        yield wanted
        behind = others.get(wanted.name) if wanted.name == "cuda-toolkit" else None
        for extra in wanted.extras if behind else ():
            for inner in map(parse, behind.requires if behind else ()):
                if "extra" in inner.marker and holds(inner.marker, {**environment, "extra": extra}) is True:
                    yield inner
