"""An isolation by groups of nodes: its rounds, what to leave out, and a heat map of the ways between nodes, in the terminal and as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from torchtune_sys.model.numbers import counted
from torchtune_sys.model.preflight import Heat, IsolationReport
from torchtune_sys.render.layout import Line, Span, clean, cut, line

_HANG = 11
_GROUPS_AT_MOST, _GROUP_WIDTH = 4, 40
_LEVELS = ((1.0, ".", "dim", "#d9efe0"), (2.0, "+", "warning", "#fde3a7"), (8.0, "*", "warning", "#f5a35c"))
"""Up to so many times the limit: the sign, its style, its colour in SVG."""
_BEYOND = ("#", "error", "#d1495b")
_FAILED = ("X", "error", "#6a0f1f")
_UNKNOWN = ("?", "dim", "#ffffff")
_SELF = ("-", "dim", "#e6e6e6")
_PLAIN = (_LEVELS[0][1], _SELF[0], _UNKNOWN[0])
"""Signs that a picture leaves to the colour."""
_CELL, _FONT, _HEADING_HEIGHT, _LEGEND_HEIGHT, _LEAST_WIDTH = 14, 11, 24, 48, 520


def lines(value: IsolationReport) -> Iterator[Line]:
    """Yield what was named, each round, and the heat map."""
    cost = f" ({counted(len(value.rounds), 'round')}, {value.seconds:.1f} s, {value.node_seconds:.0f} node-seconds)"
    yield line(_says_what(value) + cost, label=("isolation", "heading"), indent=2, hang=_HANG + 2)
    for each in value.rounds:
        bad = ", ".join(
            f"{cut(group, _GROUP_WIDTH)}{' (slow)' if group in each.slow else ''}" for group in each.failed[:_GROUPS_AT_MOST]
        )
        more = f" and {len(each.failed) - _GROUPS_AT_MOST} more" if len(each.failed) > _GROUPS_AT_MOST else ""
        groups = f"{each.groups} group{'s' if each.groups != 1 else ''} of {each.nodes} nodes"
        description = f"{each.purpose}: {groups}, {f'not well: {bad}{more}' if bad else 'all well'} ({each.seconds:.1f} s)"
        yield line(description, label=(f"round {each.number}", "dim"), indent=2, hang=_HANG + 2)
    if value.exclude:
        words = "" if {*value.exclude} <= {*value.nodes} else "  (an end of each bad link, which is not accused)"
        yield line(
            f"--exclude={','.join(map(clean, value.exclude))}{words}", label=("exclude", "heading"), indent=2, hang=_HANG + 2
        )
    if value.heat is not None:
        yield from _heat_lines(value.heat)


def _says_what(value: IsolationReport) -> str:
    named = ", ".join(map(clean, [*value.nodes, *(f"{one} - {other}" for one, other in value.links), *value.parts]))
    return {
        "well": "all pass together",
        "named": named,
        "fails-only-at-scale": f"only all together fail: {clean(value.why)}",
        "suspects": f"{named or 'nothing'} named; {clean(value.why)}",
    }.get(value.outcome, clean(value.outcome))


def _heat_lines(heat: Heat) -> Iterator[Line]:
    """Yield a row a sender, a sign a receiver, under the last digit of its name."""
    caption = f"ms from row to column; usual {heat.usual_ms:.3g}, slow above {heat.limit_ms:.3g}{_of_several(heat)}"
    legend = " ".join(["X fails", ". usual", "+ slow", "* 2 x", "# 8 x the limit", "? not measured"])
    yield line(f"{caption} ({legend})", label=("ways", "heading"), indent=2, hang=_HANG + 2)
    width = min(max((len(clean(label)) for label in heat.labels), default=0), 20)
    heads = "".join(clean(label)[-1:] if label[-1:].isdigit() else str(place % 10) for place, label in enumerate(heat.labels))
    yield line(heads, label=("", ""), indent=2, hang=width + 4)
    for place, label in enumerate(heat.labels):
        spans: list[Span] = []
        for other in range(len(heat.labels)):
            sign, style, _colour = _cell(heat, place, other)
            if spans and spans[-1][1] == style:
                spans[-1] = (spans[-1][0] + sign, style)
            else:
                spans.append((sign, style))
        yield line(*spans, label=(clean(label)[:20], "dim"), indent=2, hang=width + 4)


def _of_several(heat: Heat) -> str:
    """Where rows stand for several nodes, which of their ways is shown."""
    return "; of several nodes in a row the worst way" if any(heat.ms[at][at] is not None for at in range(len(heat.ms))) else ""


def _cell(heat: Heat, row: int, column: int) -> tuple[str, str, str]:
    """Sign, style and colour."""
    value = heat.ms[row][column]
    if (row, column) in heat.failed:
        return _FAILED
    if value is None:
        return _SELF if row == column else _UNKNOWN
    for times, sign, style, colour in _LEVELS:
        if not heat.limit_ms or value <= times * heat.limit_ms:
            return sign, style, colour
    return _BEYOND


def svg(value: IsolationReport) -> str:
    """Return the heat map as a picture that needs nothing else: what was named, rows send, columns receive, each cell has the terminal's sign and tells
    its time where the pointer rests."""
    heat = value.heat or Heat(labels=(), ms=())
    count, names = len(heat.labels), [clean(label) for label in heat.labels]
    left = 12 + 7 * min(max(map(len, names), default=0), 24)
    top = left + _HEADING_HEIGHT
    width, height = max(left + _CELL * count + 12, _LEAST_WIDTH), top + _CELL * count + _LEGEND_HEIGHT
    description = f"{'bad: ' * (value.outcome == 'named')}{_says_what(value)} ({counted(len(value.rounds), 'round')}, {value.seconds:.1f} s)"
    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="{_FONT}">',
        f"<title>{escape(f'ways between nodes: {description}')}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="18" font-size="13" font-weight="bold">{escape(cut(description, width // 8))}</text>',
    ]
    for place, name in enumerate(names):
        across, down = left + _CELL * place, top + _CELL * place
        short = escape(cut(name, 24))
        found.append(f'<text x="{left - 6}" y="{down + 11}" text-anchor="end">{short}</text>')
        found.append(f'<text transform="translate({across + 11},{top - 6}) rotate(-90)">{short}</text>')
        found += [_square(heat, place, other, left + _CELL * other, down) for other in range(count)]
    found += _legend(heat, height)
    return "\n".join([*found, "</svg>", ""])


def _square(heat: Heat, row: int, column: int, x: int, y: int) -> str:
    sign, _style, colour = _cell(heat, row, column)
    title = f"<title>{escape(_says(heat, row, column))}</title>"
    square = f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{colour}">{title}</rect>'
    if sign in _PLAIN:
        return square
    ink = "#ffffff" if sign in (_BEYOND[0], _FAILED[0]) else "#000000"
    at = f'x="{x + _CELL // 2}" y="{y + 10}"'
    return f'{square}<text {at} fill="{ink}" text-anchor="middle" pointer-events="none">{escape(sign)}</text>'


def _says(heat: Heat, row: int, column: int) -> str:
    value = heat.ms[row][column]
    outcome = "fails" if (row, column) in heat.failed else "not measured" if value is None else f"{value:g} ms"
    return f"{clean(heat.labels[row])} to {clean(heat.labels[column])}: {outcome}"


def _legend(heat: Heat, height: int) -> Iterator[str]:
    marks = [
        ("usual", _LEVELS[0][3]),
        ("+ slow", _LEVELS[1][3]),
        ("* 2 x", _LEVELS[2][3]),
        ("# 8 x the limit", _BEYOND[2]),
        ("X fails", _FAILED[2]),
        ("not measured", _UNKNOWN[2]),
    ]
    at = 12
    for words, colour in marks:
        yield f'<rect x="{at}" y="{height - 36}" width="12" height="12" fill="{colour}" stroke="#bbbbbb"/>'
        yield f'<text x="{at + 16}" y="{height - 26}">{escape(words)}</text>'
        at += 28 + 6 * len(words)
    caption = f"rows send, columns receive; usual {heat.usual_ms:.3g} ms, slow above {heat.limit_ms:.3g} ms{_of_several(heat)}"
    yield f'<text x="12" y="{height - 8}">{escape(caption)}</text>'
