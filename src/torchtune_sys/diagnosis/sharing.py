"""Write all inputs as one Markdown text for a bug report: anonymised, shortened, and with the same diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtune_sys.diagnosis.pseudonyms import Pseudonyms
from torchtune_sys.diagnosis.text.unwrapping import uncoloured
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.diagnosis import Diagnosis

TITLE = "# torchtune-sys diagnose"
"""How each bundle begins."""
_WHOLE, _AROUND, _ENDS = 1500, 12, 200
"""Lines: a text that is shown whole; of a longer one, those around each line that decided, and its first and last."""


def shared(found: Iterable[InputText], diagnosis: Diagnosis, summary: str) -> str:
    """Return the bundle; ``summary``: the diagnosis as JSON in one line."""
    found = tuple(found)
    names = Pseudonyms(line for text in found for _, line in text.excerpt.lines)
    parts = [TITLE, ""]
    for number, text in enumerate(found, 1):
        lines = scrubbed("\n".join(map(uncoloured, _kept(text, diagnosis)))).split("\n")  # together: a private key has many lines
        fence = "`" * max(3, 1 + max((_ticks(line) for line in lines), default=0))
        parts += [
            f"## Text {number}: {len(lines):,} of {text.excerpt.total:,} lines",
            "",
            f"{fence}text",
            *map(names.text, lines),
            fence,
            "",
        ]
    return "\n".join([*parts, "```json", names.text(summary).strip(), "```", ""])


def _ticks(line: str) -> int:
    stripped = line.lstrip(" >")
    return len(stripped) - len(stripped.lstrip("`"))


def _kept(text: InputText, diagnosis: Diagnosis) -> Sequence[str]:
    lines = text.excerpt.lines
    if len(lines) <= _WHOLE:
        return [line for _, line in lines]
    named = [each for cause in diagnosis.causes for each in cause.evidence] + list(diagnosis.unexplained)
    places = {each.line for each in named if each.source == text.name}
    wanted = {line + step for line in places for step in range(-_AROUND, _AROUND + 1)}
    kept = []
    for index, (number, line) in enumerate(lines):
        if number in wanted or index < _ENDS or index >= len(lines) - _ENDS:
            kept.append(line)
    return kept
