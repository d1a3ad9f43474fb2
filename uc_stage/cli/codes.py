"""The exit codes, once: the help texts, the README's table and the tests read them here."""

from __future__ import annotations

MEANINGS = {
    0: "done, or nothing to do",
    1: "a bug in uc-stage",
    2: "a flag, an argument or a combination that cannot be right",
    10: "not found: a table, a version, an export, a folder",
    11: "busy: another process works on it and the wait ran out",
    12: "verification failed: bytes, rows or a schema differ",
    13: "access denied",
    14: "not enough space",
    15: "source or engine unavailable: try again, or install what is missing",
    16: "a table feature or a type that is not supported",
    17: "the copy is stale, partial or absent (`--check`)",
    20: "below the required throughput (`--require`, `--baseline`), or something is as severe as `--fail-on`",
    129: "ended by SIGHUP",
    130: "ended by SIGINT (Ctrl-C)",
    141: "the reader of stdout has gone, as `head` goes",
    143: "ended by SIGTERM",
}

_EVERYWHERE = (0, 1, 2, 129, 130, 141, 143)


def epilog(example: str, *codes: int) -> str:
    """The end of a command's help: an example, and the codes it can exit with beside those of every command."""
    lines = [f"{code:>5}  {MEANINGS[code]}" for code in sorted({*_EVERYWHERE, *codes})]
    # The mark keeps the lines of a paragraph apart.
    return "\n".join(["\b", "Example:", f"    {example}", "", "\b", "Exit codes:", *lines])
