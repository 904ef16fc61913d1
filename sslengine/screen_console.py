"""rich's console for what strangers named."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sslengine.errors import readable


class LiteralConsole(Console):
    """Strings, and those in tables, are printed literally: a name commands neither the terminal
    nor rich."""

    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(readable(text, but="\n\t"), **how)
