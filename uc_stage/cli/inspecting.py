"""Shows what `inspect` found on one screen: facts, a picture of the files' sizes, the columns, the problems."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from uc_stage.cli import copies
from uc_stage.cli.text import age, amount, pairs, printable, show_table
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from uc_stage.model import Bin, Column, InspectReport, LoaderSettings, Pile, Spread

_BAR = 30
_BINS = 6
_PILES = 8
_PROBLEMS = 10
_ADVICE = 8
_RULES = 5
_SEVERITIES = ("wrong", "warn", "info")
# On a terminal at least so many columns are shown, however low it is.
_COLUMNS = 8
_BYTES = {"file_bytes", "row_group_bytes"}


def render(report: InspectReport) -> None:
    """Prints a report, the widest facts first; `--json` holds what a low terminal has no room for."""
    facts = _facts(report)
    picture = _picture(report.file_sizes)
    piles = [*_piles("by extension", report.extensions), *_piles("by folder", report.folders)]
    if set(report.extensions) <= {".parquet"}:
        piles = _piles("by folder", report.folders)
    pairs(facts)
    for line in (*picture, *piles):
        print(printable(line))
    if report.schema:
        _schema(report, len(facts) + len(picture) + len(piles))
    _problems(report)
    _advice(report)


def _facts(report: InspectReport) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = [(report.kind, report.target)]
    pinned = "" if report.version is None else f" version {report.version}"
    if report.version_age is not None:
        pinned += f", committed {age(report.version_age)}"
    if report.source or pinned:
        rows.append(("source", f"{report.source or ''}{pinned}".strip()))
    plain = [
        ("part", copies.part_words(report.variant)),
        ("form", copies.form_words(report.variant)),
        ("table id", report.table_id),
        ("generation", report.generation),
        ("id", report.id),
        ("created", report.created_at),
        ("engine", report.engine),
        ("options", ", ".join(f"{name} {_option(name, value)}" for name, value in report.options.items())),
    ]
    rows += [(name, value) for name, value in plain if value]
    if report.rows is not None:
        # A manifest tells more of each split, below.
        splits = {} if report.split_shares else report.splits
        named = ", ".join(f"{name} {count:,}" for name, count in splits.items())
        rows.append(("rows", f"{report.rows:,}" + (f" ({named})" if len(splits) > 1 else "")))
    if report.files is not None and report.bytes is not None:
        unpacked = "" if report.uncompressed is None else f", {format_size(report.uncompressed)} uncompressed"
        sizes = _spread(report.file_bytes, format_size)
        rows.append(("files", f"{report.files:,}, {format_size(report.bytes)}{unpacked}{sizes}"))
    if report.packed is not None:
        held = report.packed
        words = amount(held.files, "files"), amount(held.samples, "samples"), amount(held.shards, "shards")
        rows.append(("packed", "{} of {} in {}".format(*words)))
    if len(report.split_shares) > 1:
        for name, split in report.split_shares.items():
            told = [amount(split.rows, "rows"), amount(split.files, "files"), format_size(split.bytes)]
            if split.uncompressed is not None:
                told.append(f"{format_size(split.uncompressed)} uncompressed")
            rows.append((f"  {name}", ", ".join(told)))
    if report.row_groups is not None:
        rows.append(("row groups", f"{report.row_groups:,}"))
        rows.append(("  rows", _spread(report.row_group_rows, "{:,}".format).strip(" ,:") or "-"))
        rows.append(("  uncompressed", _spread(report.row_group_bytes, format_size).strip(" ,:") or "-"))
    if report.compression:
        rows.append(("compression", report.compression))
    if report.freshness:
        detail = f": {report.freshness_detail}" if report.freshness_detail else ""
        rows.append(("freshness", report.freshness + detail))
    if report.source_freshness is not None:
        rows.append(("  its source", f"{report.source_freshness.state}: {report.source_freshness.detail}"))
    if report.verified is not None:
        verdict = "yes" if report.verified else "no, see the problems"
        rows.append(("verified", f"{verdict}: {report.verified_detail}"))
    rows += [(f"loader {name}", _loader(found)) for name, found in report.loader.items()]
    return rows


def _loader(found: LoaderSettings) -> str:
    prefetch = "" if found.prefetch_factor is None else f", prefetch_factor {found.prefetch_factor}"
    reads = f"reads {amount(found.read_rows, 'rows')} ({format_size(found.read_bytes)}) at once"
    memory = f"about {format_size(found.worker_bytes)} of memory" + (" a worker" if found.num_workers else "")
    return (
        f"{found.loader}: num_workers {found.num_workers}{prefetch}, batch_size {found.batch_size}, {reads}, {memory}"
    )


def _option(name: str, value: Any) -> str:
    if name in _BYTES:
        return format_size(value)
    if isinstance(value, (list, tuple)):
        return " ".join(str(one) for one in value)
    return "yes" if value is True else str(value)


def _picture(bins: Sequence[Bin]) -> list[str]:
    """The files by their sizes as bars; nothing where all are about as large."""
    if len(bins) < 2:  # noqa: PLR2004 - one bar shows nothing
        return []
    step = -(-len(bins) // _BINS)
    joined = [bins[at : at + step] for at in range(0, len(bins), step)]
    counts = [sum(one.files for one in some) for some in joined]
    labels = [f"{format_size(some[0].least)} to {format_size(some[-1].below)}" for some in joined]
    width, most, digits = max(map(len, labels)), max(counts), len(f"{max(counts):,}")
    return ["", "files by size"] + [
        f"  {label:>{width}}  {count:>{digits},}  {'#' * (-(-count * _BAR // most))}".rstrip()
        for label, count in zip(labels, counts, strict=True)
    ]


def _piles(title: str, piles: Mapping[str, Pile]) -> list[str]:
    if not piles:
        return []
    shown = list(piles.items())[:_PILES]
    width = max(len(name or "(none)") for name, _ in shown)
    lines = ["", f"{title} ({len(piles):,})"]
    lines += [
        f"  {name or '(none)':<{width}}  {amount(pile.files, 'files')}, {format_size(pile.bytes)}"
        for name, pile in shown
    ]
    return lines + ([f"  and {len(piles) - _PILES:,} more: --json has them"] if len(piles) > _PILES else [])


def _schema(report: InspectReport, above: int) -> None:
    from rich.table import Table

    print(f"\nschema ({amount(len(report.schema), 'columns')})")
    room = len(report.schema)
    if sys.stdout.isatty():
        room = max(
            _COLUMNS, shutil.get_terminal_size().lines - above - len(report.problems) - 2 * len(report.advice) - 8
        )
    leaves: dict[str, list[Column]] = {}
    for column in report.columns:
        leaves.setdefault(column.column, []).append(column)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(leaves))
    for name in ("  column", "type", *(("physical", "nulls", "distinct", "encoding", "codec") if leaves else ())):
        table.add_column(name, no_wrap=True)
    for name in ("size", "share") if leaves else ():
        table.add_column(name, justify="right", no_wrap=True)
    # A name may hold what rich would take for its own.
    for field in report.schema[:room]:
        kind = f"{field.type}{'' if field.nullable else ' not null'}"
        row = [f"  {field.name}", kind, *(_leaf_cells(leaves.get(field.name, [])) if leaves else ())]
        table.add_row(*(printable(cell) for cell in row))
    # Rich would fold the table to the terminal, or to 80 columns: a line that is cut by the terminal reads better.
    show_table(table, None if sys.stdout.isatty() else 10_000)
    if room < len(report.schema):
        print(f"  and {len(report.schema) - room:,} more: --json has them")


def _leaf_cells(leaves: Sequence[Column]) -> list[str]:
    """The cells of one column, of all its leaves together."""
    if not leaves:
        return [""] * 7
    nulls = [leaf.nulls for leaf in leaves]
    told = [count for count in nulls if count is not None]
    return [
        _joined((f"{leaf.physical} {leaf.logical or ''}".strip() for leaf in leaves), most=2),
        f"{sum(told):,}" if len(told) == len(nulls) else "",
        _distinct(leaves[0]) if len(leaves) == 1 else "",
        _joined((encoding for leaf in leaves for encoding in leaf.encodings), most=3),
        _joined((codec for leaf in leaves for codec in leaf.compression), most=2),
        format_size(sum(leaf.bytes for leaf in leaves)),
        f"{100 * sum(leaf.share for leaf in leaves):.1f}%",
    ]


def _distinct(leaf: Column) -> str:
    if leaf.distinct_min is None:
        return ""
    if leaf.distinct_max is None:
        return f"{leaf.distinct_min:,} or more"
    if leaf.distinct_min == leaf.distinct_max:
        return f"{leaf.distinct_min:,}"
    return f"{leaf.distinct_min:,} to {leaf.distinct_max:,}"


def _joined(words: Any, most: int) -> str:
    every = list(dict.fromkeys(words))
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def failure(report: InspectReport) -> dict[str, Any]:
    """The error that a report amounts to by `--fail-on`, as the JSON's `errors` hold it."""
    counts = Counter(one.rule for one in report.failing)
    rules = [f"{rule} ({count:,} times)" if count > 1 else rule for rule, count in counts.items()]
    shown = ", ".join(rules[:_RULES]) + (f" and {len(rules) - _RULES} more" if len(rules) > _RULES else "")
    found = f"{'a finding' if len(report.failing) == 1 else f'{len(report.failing):,} findings'}"
    return {
        "code": "advice",
        "message": f"`{report.target}` has {found} that `--fail-on {report.fail_on}` does not let pass: {shown}",
        "hint": f"mend what is told above, or leave a rule out: --ignore {report.failing[0].rule}",
        "exit_code": 20,
    }


def _problems(report: InspectReport) -> None:
    if not report.problems:
        return
    print(f"\nproblems ({len(report.problems):,})")
    room = _PROBLEMS if sys.stdout.isatty() else len(report.problems)
    ranked = sorted(report.problems, key=lambda problem: _SEVERITIES.index(problem.severity))
    for problem in ranked[:room]:
        print(printable(f"  {problem.rule}  {problem.path + ': ' if problem.path else ''}{problem.message}"))
    if room < len(report.problems):
        print(f"  and {len(report.problems) - room:,} more: --json has them")
    for rule, fix in {problem.rule: problem.fix for problem in ranked}.items():
        print(printable(f"  fix {rule}: {fix}"))


def _advice(report: InspectReport) -> None:
    """What rules say, in two lines each; the rules of problems have told theirs."""
    if not report.advice:
        return
    print(f"\nadvice ({len(report.advice):,})")
    room = _ADVICE if sys.stdout.isatty() else len(report.advice)
    for one in report.advice[:room]:
        print(printable(f"  {one.rule}  {one.severity:<5}  {one.message}"))
        print(printable(f"  {'':6}  {'fix':<5}  {one.fix}"))
    if room < len(report.advice):
        print(f"  and {len(report.advice) - room:,} more: --json has them")


def _spread(spread: Spread | None, form: Callable[[int], str]) -> str:
    if spread is None:
        return ""
    least, middle, most = form(spread.min), form(spread.median), form(spread.max)
    return f": {least} each" if least == most else f": {least} to {most}, median {middle}"
