"""Regular expressions that are compiled at first use. Most runs need few of them, and compiling all takes longer than judging."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast

_COMPILING = threading.Lock()


class _Lazy:
    """Stands for a compiled pattern, and has its attributes once one of them is asked for."""

    def __init__(self, text: str, flags: int) -> None:
        self._asked = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask before there is anything
            raise AttributeError(name)
        with _COMPILING:  # probes run in threads, and each would do the same work
            made = re.compile(*self._asked)
        for each in (
            "match",
            "fullmatch",
            "search",
            "sub",
            "subn",
            "split",
            "findall",
            "finditer",
            "pattern",
            "groups",
            "groupindex",
            "flags",
        ):
            setattr(self, each, getattr(made, each))
        return getattr(made, name)


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile as ``re.compile``, but that a fault in ``text`` is found when it is used: tests use each one.

    >>> digits = pattern("([0-9]+)")
    >>> digits.sub("n", "a1b22"), digits.fullmatch("12")[1], digits.groups
    ('anbn', '12', 1)
    """
    return cast("re.Pattern[str]", _Lazy(text, flags))


LEAST = 4
"""Letters of a word that few texts have by chance."""
SHORT = 2
"""Letters of a word that is looked for in a few lines of prose only."""
_STEP = pattern(
    r"\\(?P<escaped>.)|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<group>\((?:\?:|(?!\?)))|(?P<look>\(\?)|(?P<end>\))|(?P<other>\|)"
    r"|(?P<repeated>[*+?]|\{\d*,?\d*\})|[.^$]|(?P<letters>[^\\\[()|*+?{.^$]+|.)",
    re.DOTALL,
)


class Phrase:
    """A pattern that ignores case, compiled and tried once a text holds one of its words: of the many things that people may name, a text names few.

    >>> phrase = Phrase("jumbo[- ]frames?|mtus?")
    >>> phrase.may_be_in("the mtu was 9000"), phrase.may_be_in("all is well")
    (True, False)
    >>> phrase.search("an MTU of 9000")[0]
    'MTU'
    """

    def __init__(self, text: str, words: tuple[str, ...] | None = None) -> None:
        """``words``: those of the pattern, if they are known."""
        self.words = words_of(folded(text), SHORT) if words is None else words
        self._pattern = pattern(f"(?is){text}")

    def search(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._pattern.finditer(text)

    def may_be_in(self, text: str) -> bool:
        """Return whether the pattern may match in a text, of which ``folded`` is given here."""
        return not self.words or any(word in text for word in self.words)


def folded(text: str) -> str:
    """Return the text in the one case in which a pattern that ignores case sees it: both Turkish letters I are an i to it, too.

    >>> folded("NVIDİA's GPU"), folded("dıskler")
    ("nvidia's gpu", 'diskler')
    """
    return text.replace("İ", "i").replace("ı", "i").casefold()


def in_any_case(text: str) -> str:
    """Return a pattern as it is when case is ignored, for ``words_of``: a text where it matches holds one of these words once that is ``folded``.

    >>> words_of(in_any_case("(?i)Failed|(?i:GPU lost)"))
    ('failed', 'gpu lost')
    """
    return folded(re.sub(r"\A\(\?[a-z]+\)", "", text)).replace("(?i:", "(?:")


class WordIndex:
    """Finds which lists of words have one that a text holds, by the rarest letters of each word: to ask each list takes long where there are a thousand.

    >>> index = WordIndex([("jumbo frame", "mtu"), (), ("firewall",)])
    >>> index.places("the firewall is on"), index.places("an mtu of 9000"), index.places("all is well")
    ([1, 2], [0, 1], [1])
    """

    def __init__(self, lists: Iterable[tuple[str, ...]]) -> None:
        """Take the lists in their order; one without words is found in each text."""
        words: dict[str, dict[int, None]] = {}
        for place, each in enumerate(lists):
            for word in each or ("",):
                words.setdefault(word, {})[place] = None
        cut = {word: dict.fromkeys(_pieces(word)) for word in words}
        common = Counter(chain.from_iterable(cut.values()))
        self._always = words.pop("", {})
        self._short = {word: places for word, places in words.items() if len(word) < _LETTERS}
        self._by_letters: dict[str, list[tuple[str, dict[int, None]]]] = {}
        for word, places in words.items():
            if word not in self._short:
                self._by_letters.setdefault(min(cut[word], key=common.__getitem__), []).append((word, places))

    def places(self, text: str) -> list[int]:
        """Return the places of the lists, in their order."""
        found = {*self._always}
        for letters in self._by_letters.keys() & _pieces(text):
            for word, places in self._by_letters[letters]:
                if word in text:
                    found.update(places)
        for word, places in self._short.items():
            if word in text:
                found.update(places)
        return sorted(found)


_LETTERS = 4
"""Of a word, by which it is looked for."""


def _pieces(text: str) -> list[str]:
    return [text[start : start + _LETTERS] for start in range(max(len(text) - _LETTERS + 1, 1))]


def words_of(text: str, least: int = LEAST) -> tuple[str, ...]:
    r"""Return words of which a text has one wherever the pattern matches, so that the pattern need not be compiled and tried without; ``()`` where
    that is unknown: it ignores case, or one of its alternatives holds no word of so many letters.

    >>> words_of(r"cuda \d+ failed|a{2,3}driver v?ersion\.x"), words_of("(?i)failed"), words_of("(?:failed|lost) at|ab")
    ((' failed', 'ersion.x'), (), ())
    >>> words_of("[Cc]an(?:not|'t) (?:open|read the) a"), words_of("(?:open )?(?!closed)x+"), words_of("a(?:bcde|fghi)?j")
    (('open', 'read the'), (), ())
    """
    if re.match(r"\(\?[a-zA-Z]+\)", text):
        return ()
    groups = [_Group()]
    looks = 0
    for step in _STEP.finditer(text):
        if looks:  # what stands around a place, or ignores case, says nothing of the words
            looks += bool(step["group"] or step["look"]) - bool(step["end"])
        elif step["group"]:
            groups.append(_Group())
        elif step["end"]:
            words = groups.pop().words(least)
            groups[-1].follow(words)
        elif step["escaped"] and step["escaped"] in "xuUN0123456789":  # a character by its number
            return ()
        else:
            looks = int(bool(step["look"]))
            groups[-1].take(step)
    return groups[0].words(least)


class _Group:
    """The words of a group while it is read: of each alternative those that are told best."""

    __slots__ = ("_alternatives", "_best", "_inner", "_length", "_run")

    def __init__(self) -> None:
        self._alternatives: list[tuple[str, ...]] = []
        self._best: tuple[str, ...] = ("",)
        self._length = 0  # of the shortest of them
        self._run = ""
        self._inner: tuple[str, ...] = ()
        """The words of a group that just ended: they count if it must be there."""

    def follow(self, words: tuple[str, ...]) -> None:
        """Take in a group within this one."""
        self._end_run()
        self._inner = words

    def take(self, step: re.Match[str]) -> None:
        """Take in what is not a group."""
        letters = step["letters"] or ("" if (step["escaped"] or "").isalnum() else step["escaped"])
        if letters:
            self._keep_inner()
            self._run += letters
        elif step["other"]:
            self._end_alternative()
        else:
            if step["repeated"] and not re.match(r"\+|\{[1-9]", step["repeated"]):
                self._run, self._inner = self._run[:-1], ()
            self._end_run()

    def words(self, least: int) -> tuple[str, ...]:
        """Return a word of each alternative; none where one has none."""
        self._end_alternative()
        words = tuple(word for each in self._alternatives for word in each)
        return words if min(map(len, words)) >= least else ()

    def _keep_inner(self) -> None:
        if self._inner:
            self._offer(self._inner, min(map(len, self._inner)))
            self._inner = ()

    def _end_run(self) -> None:
        self._keep_inner()
        self._offer((self._run,), len(self._run))
        self._run = ""

    def _end_alternative(self) -> None:
        self._end_run()
        self._alternatives.append(self._best)
        self._best, self._length = ("",), 0

    def _offer(self, words: tuple[str, ...], length: int) -> None:
        if length > self._length:
            self._best, self._length = words, length
