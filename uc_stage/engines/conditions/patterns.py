"""Patterns of LIKE and RLIKE as RE2, the regular expressions of Arrow."""

from __future__ import annotations

import re

_ITEM = r"\\[dw]|\\[^A-Za-z0-9]|[^\\\[\]^&-](?:-[^\\\[\]^&-])?"
_TOKEN = re.compile(
    rf"""(?P<set>\[\^?(?:{_ITEM})+\]) | (?P<known>\\[dDwWs]) | (?P<character>\\[^A-Za-z0-9] | [^\\.\[\]{{}}()*+?^$|])
    | (?P<any>\.) | (?P<open>\((?:\?:|(?!\?))) | (?P<close>\)) | (?P<or>\|) | (?P<start>\^) | (?P<end>\$\Z)
    | (?P<repeat>(?:[*+?] | \{{\d+(?:,\d*)?\}})\??)""",
    re.VERBOSE | re.DOTALL,
)
_KNOWN = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]", "s": r"[ \t\n\x{B}\f\r]"}
_REPEATABLE = {"set", "known", "character", "any", "close"}
# What Java's `.` leaves out, and before the last of which its `$` is true as well.
_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_FIXED = {
    "any": f"[^{_ENDS}]",
    "open": "(?:",
    "close": ")",
    "or": "|",
    "start": r"\A",
    "end": rf"(?:\r\n|[{_ENDS}])?\z",
}


def like(pattern: str, escape: str) -> tuple[str, str] | None:
    """A pattern of LIKE as the function of Arrow that finds it, and what that is to find.

    None for a pattern in which the escape stands before what it does not escape.
    """
    tokens: list[tuple[str, str]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None or literal not in {"_", "%", escape}:
                return None
            tokens.append(("", literal))
        else:
            tokens.append((character, "") if character in "_%" else ("", character))
    kinds = [kind for kind, _ in tokens]
    first, last = int(kinds[:1] == ["%"]), len(tokens) - int(kinds[1:][-1:] == ["%"])
    if not any(kinds[first:last]):
        functions = [["equal", "starts_with"], ["ends_with", "match_substring"]]
        return functions[first][len(tokens) - last], "".join(literal for _, literal in tokens)
    regex = "".join({"_": ".", "%": ".*"}.get(kind) or _exactly(literal) for kind, literal in tokens)
    return "match_substring_regex", rf"\A(?s:{regex})\z"


def rlike(pattern: str) -> str | None:
    r"""A pattern of Java as RE2, where it is sure to be found in the same texts; None for any other.

    Taken are characters, `.`, `\d`, `\w`, `\s`, sets of characters, groups, `|`, `^`, a last `$` and repetitions that
    give back what they took: whether those are found does not hang on the order in which an engine tries.
    """
    parts: list[str] = []
    at, before, may_end_line = 0, "", False
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        kind = token.lastgroup if token else None
        if token is None or kind is None or (kind == "repeat" and before not in _REPEATABLE):
            return None
        text = token[0]
        if kind == "end" and may_end_line:
            # Java's `$` is not true between \r and \n.
            return None
        may_end_line |= text.startswith("[^") or text in {r"\D", r"\W", r"\s"} or any(c < " " for c in text)
        parts.append(_translated(kind, text))
        at, before = token.end(), kind
    return "".join(parts)


def _translated(kind: str, text: str) -> str:
    if kind == "known":
        return _KNOWN[text[1]]
    if kind == "character":
        return _exactly(text[-1])
    if kind == "set":
        opening = "[^" if text.startswith("[^") else "["
        items = re.findall(_ITEM, text[len(opening) : -1], re.DOTALL)
        return opening + "".join(_item(item) for item in items) + "]"
    return _FIXED.get(kind, text)


def _item(text: str) -> str:
    if text in {r"\d", r"\w"}:
        return _KNOWN[text[1]][1:-1]
    if text.startswith("\\"):
        return _exactly(text[1])
    return "-".join(_exactly(end) for end in text.split("-"))


def _exactly(character: str) -> str:
    return character if re.fullmatch("[A-Za-z0-9]", character) else rf"\x{{{ord(character):X}}}"
