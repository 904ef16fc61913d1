"""Text on a terminal: lines are wrapped between words. Elsewhere it stays as it is."""

from __future__ import annotations

import os
import shutil
import textwrap
from typing import TextIO

_LEAST = 20  # columns; a terminal may say that it has none


def columns(stream: TextIO) -> int | None:
    """The width of the terminal that the stream writes to; None if it is none."""
    if not stream.isatty():
        return None
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = shutil.get_terminal_size().columns
    return max(width, _LEAST)


def wrapped(text: str, width: int | None) -> str:
    """The rest of a long line is indented below its beginning. A word that is longer than the
    width stays whole, so that a path can be copied."""
    if width is None:
        return text
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False, expand_tabs=False,
    )  # fmt: skip


def whole(parts: list[str], width: int | None, more: bool = True) -> str:
    """Side by side, those that fit into a line; with `more`, how many do not."""
    for left in range(len(parts)):
        shown = parts[: len(parts) - left]
        line = "  ".join([*shown, f"+{left}"] if left and more else shown)
        if width is None or len(line) <= width:
            return line
    return parts[0] if parts and more else ""
