"""The facts as an indented text, for people."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model import codec
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, line


def render(seen: Snapshot, style: Style) -> str:
    lines = [line(("origin", "bold"), f" {seen.origin}"), *_entry("intent", codec.to_builtins(seen.intent), 0)]
    for family in FAMILIES:
        lines.extend(_entry(family, codec.to_builtins(getattr(seen, family)), 0))
    return layout.render(lines, style)


def timings_text(timings: dict[str, float]) -> str:
    """Return the seconds by family, the slowest first; families run side by side, so they do not add up."""
    rows = sorted(timings.items(), key=lambda item: -item[1])
    return "".join(f"{1000 * seconds:9.1f} ms  {family}\n" for family, seconds in rows)


def _entry(name: str, value: object, depth: int) -> Iterator[Line]:
    label = (name, "bold" if depth == 0 else "")
    inline = _inline(value)
    if inline is not None:
        style = "dim" if isinstance(value, dict) and "$missing" in value else ""
        yield line((inline, style), label=label, indent=2 * depth, hang=2 * depth + len(name) + 1)
        return
    yield line(label=label, indent=2 * depth)
    items = value.items() if isinstance(value, dict) else ((_name(item, place), item) for place, item in enumerate(_list(value)))
    for key, item in items:
        yield from _entry(str(key), item, depth + 1)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _name(item: object, place: int) -> str:
    """Return what people call an entry of a list: its name, address, path or number."""
    if isinstance(item, dict):
        for key in ("name", "address", "path", "id", "index", "key"):
            if isinstance(item.get(key), (str, int)):
                return f"- {item[key]}"
    return f"- {place}"


def _inline(value: object) -> str | None:
    """Return the value on one line, or None if it needs a block."""
    if isinstance(value, dict):
        if "$missing" in value:
            detail = value.get("detail") or ""
            return f"? {value['$missing']}: {value.get('source', '')}" + (f" ({detail})" if detail else "")
        return "{}" if not value else None
    if isinstance(value, list):
        if any(isinstance(item, (dict, list)) for item in value):
            return None
        return ", ".join(map(_scalar, value)) or "[]"
    return _scalar(value)


def _scalar(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)
