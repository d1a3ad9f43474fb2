"""The words for copies: what `cache` did or would do, what there is, and what `prune` would remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uc_stage.cli.text import amount, duration
from uc_stage.model import variant_words
from uc_stage.sizes import format_size

if TYPE_CHECKING:
    from uc_stage.model import CachedCopy, CachePlan, CacheReport, CopiesReport, Holder, PrunePlan


# The words of a variant that tell the form, not the part.
_FORMS = ("as", "pack", "pack-size")


def part_words(variant: str) -> str:
    """The part of its source that a copy holds: `shard 0 of 4, include *.jpg`; empty for all of it."""
    words = []
    for name, value in variant_words(variant):
        if name not in _FORMS:
            words.append(f"{name} {value.replace('/', ' of ') if name == 'shard' else value}".rstrip())
    return ", ".join(words)


def form_words(variant: str) -> str:
    """The form of a copy: `arrow`, or `pack`; empty for the source's files as they are."""
    found = [value if name == "as" else name for name, value in variant_words(variant) if name in _FORMS]
    return found[0] if found else ""


def cache_words(report: CacheReport) -> str:
    """What `cache` did."""
    where = ", in memory" if report.in_memory else ""
    part, form = part_words(report.variant), form_words(report.variant)
    source = report.source + (f" ({part})" if part else "")
    what = f"{amount(report.files, 'files')} ({format_size(report.bytes)})"
    if report.status == "unchanged":
        return f"unchanged: the copy of {source} is whole: {what}{where}"
    made = {"": "", "pack": ", packed"}.get(form, f" as {form}")
    read = f", from {format_size(report.bytes_copied)}" if made else ""
    words = f"copied {source}{made}: {what}{read} in {duration(report.seconds)}"
    if report.seconds:
        words += f", {format_size(report.bytes_copied / report.seconds)}/s"
    if report.bytes_reused:
        words += f"; {format_size(report.bytes_reused)} were there already, and verified"
    return words + where


def cache_plan(plan: CachePlan) -> list[tuple[str, str]]:
    """What `cache` would do, as names and values."""
    part, form = part_words(plan.variant), form_words(plan.variant)
    return [
        ("copy", plan.path),
        ("state", plan.state + (f": {plan.reason}" if plan.reason else "")),
        ("source", plan.source),
        *((("part", part),) if part else ()),
        ("files", f"{plan.file_count:,}"),
        *((("form", form),) if form else ()),
        ("size", f"{'about ' if plan.outputs else ''}{format_size(plan.bytes)}"),
        ("to copy", format_size(plan.bytes_to_copy)),
        ("needed", format_size(plan.bytes_needed)),
        ("free there", format_size(plan.bytes_free) + (" of memory" if plan.in_memory else "")),
        *(("evict", _line(copy)) for copy in plan.evictions),
        *(
            (("lacking", f"{format_size(plan.bytes_lacking)}, also without the copies that nobody uses"),)
            if plan.bytes_lacking
            else ()
        ),
    ]


def listed(copy: CachedCopy) -> list[tuple[str, str]]:
    """One copy, as names and values."""
    version = f" (version {copy.version})" if copy.version is not None else ""
    part, form = part_words(copy.variant), form_words(copy.variant)
    return [
        ("partial copy" if copy.kind == "partial" else "copy", copy.path),
        ("  source", copy.source or "unknown: its record is damaged"),
        *((("  part", part),) if part else ()),
        ("  generation", (copy.generation or "unknown") + version),
        *((("  freshness", f"{copy.freshness}: {copy.freshness_detail}"),) if copy.freshness else ()),
        *((("  form", form),) if form else ()),
        ("  files", f"{copy.files:,}, {format_size(copy.bytes)}"),
        ("  last use", f"{duration(copy.idle_seconds)} ago, {copy.used_at}"),
        ("  held by", ", ".join(_holder(holder) for holder in copy.holders) or "nobody"),
    ]


def room(report: CopiesReport) -> str:
    """What all copies take, and leave."""
    free = f"{format_size(report.bytes_free)}{' of memory' if report.in_memory else ''} free"
    return f"{report.cache_dir}: {together(len(report.copies), report.bytes)}, {free}"


def prune_plan(plan: PrunePlan) -> list[str]:
    """What `prune` would do, line by line."""
    return [
        *(_line(copy) for copy in plan.copies),
        *(f"{kept.path}, stays: {kept.reason}" for kept in plan.kept),
        f"would remove {together(len(plan.copies), plan.bytes)}",
    ]


def together(count: int, total: int) -> str:
    """How many copies, of how many bytes together."""
    return f"{count:,} {'copy' if count == 1 else 'copies'} ({format_size(total)})" if count else "no copies"


def _line(copy: CachedCopy) -> str:
    words = [copy.path, format_size(copy.bytes), f"last used {duration(copy.idle_seconds)} ago"]
    if copy.kind == "partial":
        words.insert(1, "partial")
    return ", ".join(words)


def _holder(holder: Holder) -> str:
    if holder.pid is None:
        return "a process that is not to be seen"
    return f"{holder.pid} ({holder.command})" if holder.command else str(holder.pid)
