"""What a terminal of some width shows of what is written to it: the little of one that rich uses."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


class Terminal:
    def __init__(self, width: int) -> None:
        self.width = width
        self.lines = [""]
        self.row = self.column = 0
        self.cursor_shown = True

    def feed(self, text: str) -> Terminal:
        for match in _PIECE.finditer(text):
            number, code, move, char = match.groups()
            if char:
                self._put(char)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self._down()
            else:
                self._control(code, number)
        return self

    def _control(self, code: str, number: str) -> None:
        if code == "A":
            self.row = max(0, self.row - int(number or 1))
        elif code == "K":
            self.lines[self.row] = "" if number == "2" else self.lines[self.row][: self.column]
        elif code in "hl":
            self.cursor_shown = code == "h"
        elif code != "m":
            raise ValueError(f"{code}: this terminal does not know that")

    def _put(self, char: str) -> None:
        if self.column == self.width:
            self._down()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
        self.column += 1

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def shown(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]
