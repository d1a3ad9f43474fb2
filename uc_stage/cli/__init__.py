"""The command line: parses, calls one function, renders one report, picks one exit code."""
from __future__ import annotations


def main() -> None:
    """Runs the command line."""
