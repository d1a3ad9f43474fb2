"""Bars of a page: HTML text around small SVG drawings, whose widths are percentages so that they fit any screen."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: how long it is on the scale of the chart, its kind, which is its colour, and what it says."""

    value: float
    kind: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a chart; `reach` is from where to where the repeats went."""

    label: str
    parts: Sequence[Part]
    said: str
    reach: tuple[float, float] | None = None


def text(value: object) -> str:
    """Text for HTML, in attributes too; what no page can hold, or would turn around, is written out as an escape."""
    shown = "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in str(value)
    )
    return html.escape(shown)


def short(number: float) -> str:
    """A number with three digits that count: `1.23 M`, `45.6 k`, `789`."""
    for unit in ("", " k", " M", " G"):
        if abs(number) < _THOUSAND - 0.5 or unit == " G":
            break
        number /= _THOUSAND
    digits = 0 if not unit or abs(number) >= 100 else 1 if abs(number) >= 10 else 2  # noqa: PLR2004 - powers of ten
    return f"{number:,.{digits}f}{unit}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """What paths are called beside a bar: by their last part, where those are not the same."""
    last = {name: name.rstrip("/").rpartition("/")[2] for name in names}
    return last if all(last.values()) and len(set(last.values())) == len(last) else {name: name for name in names}


def chart(groups: Iterable[tuple[str, Sequence[Bar]]], longest: float) -> str:
    """Bars below one another, in groups of one heading each (empty: none); `longest` is the width of the chart."""
    lines = []
    for heading, bars in groups:
        if heading:
            lines.append(f'<li class="group">{text(heading)}</li>')
        lines += [_line(bar, longest) for bar in bars]
    return f'<ol class="bars">{"".join(lines)}</ol>'


def legend(kinds: Iterable[tuple[str, str]]) -> str:
    """What the colours mean: kinds with their words."""
    items = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect class="{text(kind)}" width="12" height="12" rx="3"/>'
        f"</svg>{text(words)}</li>"
        for kind, words in kinds
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _line(bar: Bar, longest: float) -> str:
    said = "; ".join([f"{bar.label}: {bar.said}", *(part.words for part in bar.parts if part.words)])
    shapes = ['<rect class="track" width="100%" height="14" rx="3"/>']
    at = 0.0
    for part in bar.parts:
        width = _share(part.value, longest)
        if width > 0:
            tip = f"<title>{text(part.words)}</title>" if part.words else ""
            shape = f'class="part {part.kind}" x="{at:.3f}%" width="{width:.3f}%" height="14" rx="3"'
            shapes.append(f"<rect {shape}>{tip}</rect>")
        at += width
    if bar.reach:
        low, high = (_share(end, longest) for end in bar.reach)
        shapes.append(f'<line class="reach" x1="{low:.3f}%" x2="{high:.3f}%" y1="7" y2="7"/>')
        shapes += [f'<line class="reach" x1="{end:.3f}%" x2="{end:.3f}%" y1="3" y2="11"/>' for end in (low, high)]
    drawing = f'<svg role="img" aria-label="{text(said)}" width="100%" height="14">{"".join(shapes)}</svg>'
    return (
        f'<li class="bar"><span class="label">{text(bar.label)}</span>{drawing}'
        f'<span class="said">{text(bar.said)}</span></li>'
    )


def _share(value: float, longest: float) -> float:
    return min(100.0, max(0.0, 100 * value / longest)) if longest > 0 else 0.0
