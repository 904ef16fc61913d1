"""rich's console for what strangers named."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sslengine.errors import readable


class LiteralConsole(Console):
    """Strings, and those in tables, are printed literally: a name commands neither the terminal
    nor rich."""

    def __init__(self, width_of_file: int | None = None, **how: Any) -> None:
        """width_of_file: the columns where the stream is no terminal; None: as rich chooses."""
        super().__init__(markup=False, highlight=False, emoji=False, **how)
        if width_of_file is not None and not self.is_terminal:
            self.width = width_of_file

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(readable(text, but="\n\t"), **how)
