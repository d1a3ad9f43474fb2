"""The page of a report: one file of HTML that asks no network and runs no script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.benchmark.bars import Bar, Part, chart, legend, short, short_names, text
from uc_stage.benchmark.page_style import STYLE
from uc_stage.benchmark.page_way import way
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from uc_stage.model import BenchReport, ComparedCell, Comparison, Measurement, Requirement

_MARK = '<meta name="generator" content="uc-stage bench">'
_HEAD_BYTES = 4096

# Nothing but the style in the page itself: a browser that obeys it asks nobody, whatever a name holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_WORDS = {True: "cold", False: "warm", None: ""}
_KINDS = {True: "cold", False: "warm", None: "none"}


def is_page(data: bytes) -> bool:
    """Whether a file's bytes are a page of bench."""
    return _MARK.encode() in data[:_HEAD_BYTES]


def draw(report: BenchReport) -> bytes:
    """The page, in UTF-8."""
    names = list(dict.fromkeys(one.target for one in report.measurements))
    sections = [
        ("Throughput", _throughput(report, names)),
        ("Source against copy", _against(report, names) if len(names) > 1 else ""),
        ("Time that a training waits", _waits(report)),
        *way(report),
        ("Beside kept results", "".join(map(_beside, report.comparisons))),
        ("All measurements", _table(report)),
        ("Measured on", _facts(report)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{content}</section>\n" for title, content in sections if content)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        _MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(f'uc-stage bench: {names[-1]}')}</title>",
        f"<style>{STYLE}</style></head>",
        f"<body><main><header>{_header(report, names)}</header>",
        f"{body}</main></body></html>\n",
    ]
    return "\n".join(lines).encode()


def _header(report: BenchReport, names: Sequence[str]) -> str:
    when = f" · measured {_time(report.at)}" if report.at else ""
    kept = f" · kept in {report.kept_in}" if report.kept_in else ""
    tiles = [_tile(*tile) for tile in _tiles(report, names[-1])]
    verdicts = [_verdict(one) for one in report.requirements]
    return (
        f"<h1>How fast the data can be read</h1><p>{text(', '.join(names))}</p>"
        f'<p class="soft">uc-stage bench{text(when + kept)}</p><div class="tiles">{"".join(tiles + verdicts)}</div>'
    )


def _time(at: str) -> str:
    return at.replace("T", " ").replace("+00:00", " UTC")


def _tiles(report: BenchReport, target: str) -> Iterable[tuple[str, str, str]]:
    """The numbers to see first: of the last target."""
    of_it = [one for one in report.measurements if one.target == target and not one.failed]
    loaders = [one for one in of_it if one.rows_per_second]
    if loaders:
        best = max(loaders, key=lambda one: one.rows_per_second or 0.0)
        yield f"{short(best.rows_per_second or 0.0)} rows/s", f"the fastest reader: {_name(best, report)}", ""
        yield f"{format_size(best.bytes_per_second)}/s", "of the files on disk, by the same", ""
    if raw := [one.bytes_per_second for one in of_it if one.reader == "raw"]:
        yield f"{format_size(max(raw))}/s", "the bytes alone: no reader is faster", ""
    if waits := [one.wait_share for one in of_it if one.wait_share is not None]:
        yield f"{min(waits):.1%}", "of its time a training waits, at best", ""
    for comparison in report.comparisons:
        if comparison.baseline:
            count = len(comparison.regressions)
            words = "slower than the baseline" if count else "nothing is slower than the baseline"
            if not comparison.judged:
                yield "none", "of these measurements is in the baseline", "bad"
            else:
                yield (f"{count}" if count else "0"), words, "bad" if count else "good"


def _tile(value: str, words: str, mood: str) -> str:
    return f'<div class="card tile"><b class="{mood}">{text(value)}</b><span>{text(words)}</span></div>'


def _verdict(one: Requirement) -> str:
    value = f"{one.measured:.1%}" if one.unit == "share" else f"{short(one.measured)} rows/s"
    value = f"{format_size(one.measured)}/s" if one.unit == "bytes/s" else value
    words = f"required: {one.text}; measured {value} by {one.reader}"
    return _tile("met" if one.met else "not met", words, "good" if one.met else "bad")


def _throughput(report: BenchReport, names: Sequence[str]) -> str:
    """A figure for each target, all on one scale, in rows; in bytes where no reader counts rows."""
    by_rows = any(one.rows_per_second for one in report.measurements)
    rate, longest = _rates(report, by_rows=by_rows)
    figures = []
    for target in names:
        of_it = [one for one in report.measurements if one.target == target]
        groups: list[tuple[str, list[Bar]]] = []
        readers = list(dict.fromkeys(one.reader for one in of_it))
        if len(of_it) == len(readers):
            groups = [("", [_bar(one.reader, one, rate) for one in of_it])]
        else:
            for reader in readers:
                mine = [one for one in of_it if one.reader == reader]
                groups.append((reader, [_bar(_settings(one, report) or reader, one, rate) for one in mine]))
        kinds = [(_KINDS[cold], _WORDS[cold]) for cold in (True, False) if any(one.cold is cold for one in of_it)]
        note = "Longer is faster; all figures have one scale."
        if by_rows and any(one.reader == "raw" for one in of_it):
            note += " raw reads bytes and makes no rows: its bar is as long as those bytes have rows."
        if any(len(one.rates) > 1 for one in of_it):
            note += " The thin line goes from the slowest repeat to the fastest."
        drawn = chart(groups, longest) + legend(kinds)
        figures.append(_figure(f"Rows a second: {target}" if by_rows else f"Bytes a second: {target}", drawn, note))
    return f'<div class="figures" id="throughput">{"".join(figures)}</div>'


def _rates(report: BenchReport, *, by_rows: bool) -> tuple[Callable[[Measurement], float], float]:
    """How long a measurement's bar is, and the longest, whiskers among them."""
    facts = {one.target: one.rows / one.bytes for one in report.targets if one.bytes}

    def rate(one: Measurement) -> float:
        if one.failed:
            return 0.0
        if not by_rows:
            return one.bytes_per_second
        return one.rows_per_second or one.bytes_per_second * facts.get(one.target, 0.0)

    ends = [rate(one) * _stretch(one)[1] for one in report.measurements]
    return rate, max(ends, default=0.0)


def _stretch(one: Measurement) -> tuple[float, float]:
    """The slowest and the fastest repeat, as parts of the rate that the measurement tells."""
    own = one.rows_per_second if one.rows_per_second is not None else one.bytes_per_second
    return (min(one.rates) / own, max(one.rates) / own) if len(one.rates) > 1 and own else (1.0, 1.0)


def _bar(label: str, one: Measurement, rate: Callable[[Measurement], float]) -> Bar:
    value = rate(one)
    low, high = _stretch(one)
    reach = (value * low, value * high) if len(one.rates) > 1 and not one.failed else None
    if one.failed:
        said = "failed"
    elif one.rows_per_second:
        said = f"{short(one.rows_per_second)} rows/s"
    else:
        said = f"{format_size(one.bytes_per_second)}/s"
    return Bar(label, [Part(value, _KINDS[one.cold])], said, reach)


def _against(report: BenchReport, names: Sequence[str]) -> str:
    """Each reader's best over each target, the first of which is the source."""
    by_rows = any(one.rows_per_second for one in report.measurements)
    best: dict[tuple[str, str], float] = {}
    for one in report.measurements:
        speed = (one.rows_per_second or 0.0) if by_rows else one.bytes_per_second
        key = (one.reader, one.target)
        best[key] = max(best.get(key, 0.0), 0.0 if one.failed else speed)
    called = short_names(names)
    groups = []
    for reader in dict.fromkeys(one.reader for one in report.measurements):
        base = best.get((reader, names[0]), 0.0)
        bars = []
        for name in names:
            value = best.get((reader, name), 0.0)
            said = f"{short(value)} {'rows' if by_rows else 'B'}/s"
            if name != names[0] and base:
                said += f" ({value / base:.1f}x)"
            bars.append(Bar(called[name], [Part(value, "first" if name == names[0] else "other")], said))
        if any(bar.parts[0].value for bar in bars):
            groups.append((reader, bars))
    longest = max(best.values(), default=0.0)
    return _figure(
        "Each reader's best",
        chart(groups, longest),
        f"The factor is against {names[0]}, the first target; all bars have one scale.",
    ).replace("<figure", '<figure id="against"', 1)


def _waits(report: BenchReport) -> str:
    played = [one for one in report.measurements if one.wait_share is not None]
    if not played:
        return ""
    groups = []
    for target in dict.fromkeys(one.target for one in played):
        bars = [
            Bar(_name(one, report), [Part(one.wait_share or 0.0, "wait")], f"{one.wait_share:.1%}")
            for one in played
            if one.target == target
        ]
        groups.append((target, bars))
    note = "The share of its time in which a played training has no batch; a full bar is all of it."
    return _figure("GPU wait", chart(groups, 1.0), note).replace("<figure", '<figure id="waits"', 1)


def _figure(title: str, drawn: str, note: str) -> str:
    return f'<figure class="card"><h3>{text(title)}</h3>{drawn}<figcaption>{text(note)}</figcaption></figure>'


def _name(one: Measurement, report: BenchReport) -> str:
    settings = _settings(one, report)
    return f"{one.reader}, {settings}" if settings else one.reader


def _settings(one: Measurement, report: BenchReport) -> str:
    """The settings of a measurement in which those of its reader differ; 0 is none, but for the workers."""
    words = []
    for name in ("workers", "batch_size", "prefetch"):
        known = {getattr(other, name) for other in report.measurements if other.reader == one.reader}
        value = getattr(one, name)
        if name == "workers" and len(known) > 1:
            words.append(f"{value:,} worker{'' if value == 1 else 's'}")
        elif value and len(known - {0}) > 1:
            words.append(f"{'batch' if name == 'batch_size' else name} {value:,}")
    return ", ".join([*words, *([_WORDS[one.cold]] if one.cold is not None else [])])


def _beside(comparison: Comparison) -> str:
    rows = [_compared(cell) for cell in comparison.cells]
    # The settings in which the cells differ.
    differing = [name for name in ("workers", "batch", "prefetch", "pages") if len({row[name] for row in rows}) > 1]
    columns = ["reader", *differing, *_NUMBERS, "verdict", "target"]
    lines = []
    for row, cell in zip(rows, comparison.cells, strict=True):
        values = "".join(f"<td>{text(row[name])}</td>" for name in (*differing, *_NUMBERS))
        words = f'<td class="word{" bad" if cell.regressed else ""}">{text(row["verdict"])}</td>'
        words += f'<td class="word">{text(row["target"])}</td>'
        lines.append(f'<tr><th scope="row" class="word">{text(row["reader"])}</th>{values}{words}</tr>')
    what = "the baseline " if comparison.baseline else ""
    caption = f"Beside {what}{comparison.file}" + (f", measured {_time(comparison.at)}" if comparison.at else "")
    notes = "".join(f'<p class="soft">{text(note)}</p>' for note in comparison.notes)
    heads = [f":{name}" if name in ("reader", "verdict", "target") else name for name in columns]
    return _scroll(caption, heads, lines) + notes


_NUMBERS = ("rows/s then", "rows/s now", "MB/s then", "MB/s now", "factor")


def _compared(cell: ComparedCell) -> dict[str, str]:
    def number(value: float | None, form: str, unit: float = 1.0) -> str:
        return "" if value is None else format(value / unit, form)

    return {
        "reader": cell.reader,
        "workers": str(cell.workers),
        "batch": _whole(cell.batch_size or None),
        "prefetch": _whole(cell.prefetch or None),
        "pages": _WORDS[not cell.warm],
        "rows/s then": number(cell.kept_rows_per_second, ",.0f"),
        "rows/s now": number(cell.rows_per_second, ",.0f"),
        "MB/s then": number(cell.kept_bytes_per_second, ",.1f", 1e6),
        "MB/s now": number(cell.bytes_per_second, ",.1f", 1e6),
        "factor": "" if cell.factor is None else f"{cell.factor:.2f}x",
        "verdict": cell.verdict,
        "target": cell.target,
    }


_COSTS = ("first batch", "batch p50", "batch p99", "CPU")


def _table(report: BenchReport) -> str:
    rows = []
    for one in report.measurements:
        cells = [
            _whole(one.workers), _whole(one.batch_size or None), _whole(one.prefetch or None), _WORDS[one.cold],
            "" if one.rows_per_second is None else f"{one.rows_per_second:,.0f}",
            f"{one.bytes_per_second / 1e6:,.1f}",
            "" if one.limit_share is None else f"{one.limit_share:.0%}",
            _milliseconds(one.first_batch_seconds), _milliseconds(one.batch_p50_seconds),
            _milliseconds(one.batch_p99_seconds),
            "" if one.cpu_seconds is None else f"{one.cpu_seconds:,.2f} s",
            "" if one.worker_bytes is None else format_size(one.worker_bytes),
            _whole(one.distinct_rows),
            "whole" if one.complete else f"{one.seconds:,.1f} s of it",
        ]  # fmt: skip
        note = f'<td class="word long{" bad" if one.failed else ""}">{text(one.note or "")}</td>'
        rows.append(
            f'<tr><th scope="row" class="word">{text(one.reader)}</th>'
            + "".join(f"<td>{text(cell)}</td>" for cell in cells)
            + f'<td class="word">{text(one.target)}</td>{note}</tr>'
        )
    heads = ("workers", "batch", "prefetch", "pages", "rows/s", "MB/s", "of the limit")
    skipped = "".join(f"<p>{text(f'skipped {name}: {why}')}</p>" for name, why in report.skipped.items())
    return (
        _scroll(
            "Every reader, target and setting",
            (":reader", *heads, *_COSTS, "worker memory", "distinct rows", "read", ":target", ":note"),
            rows,
        )
        + skipped
    )


def _scroll(caption: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table that scrolls by itself where the screen is narrow; a head with `:` before it is of words."""
    head = "".join(
        f'<th scope="col"{" class=word" if name[0] == ":" or not at else ""}>{text(name.lstrip(":"))}</th>'
        for at, name in enumerate(heads)
    )
    return (
        f'<div class="card scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _whole(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:,.1f} ms"


def _facts(report: BenchReport) -> str:
    machine = report.machine
    pairs = []
    if machine is not None:
        pairs = [
            ("processor", f"{machine.processor}, {machine.cpus:,} to use"),
            ("memory", format_size(machine.memory)),
            ("python", machine.python),
            *machine.packages.items(),
        ]
    for one in report.targets:
        generation = f", generation {one.generation}" if one.generation else ""
        held = f"{one.rows:,} rows in {one.files:,} file{'' if one.files == 1 else 's'}, {format_size(one.bytes)}"
        pairs.append((one.kind, f"{one.target}: {held}{generation}"))
    items = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs)
    return f'<div class="card"><dl>{items}</dl></div>' if items else ""
