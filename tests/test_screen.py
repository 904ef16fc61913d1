from __future__ import annotations

import io
import os
import pty
import struct
from fcntl import ioctl
from termios import TIOCSWINSZ

import pytest

from sslengine.screen import columns, fit_line, wrapped

LONG = "  a warning of many words, with a path: /home/somebody/runs/quickstart/simclr/checkpoints/x"


@pytest.mark.parametrize("width", [60, 80])
def test_lines_end_between_words_and_words_stay_whole(width: int) -> None:
    lines = wrapped(f"short\n{LONG}", width).split("\n")
    assert lines[0] == "short"
    assert " ".join(" ".join(lines[1:]).split()) == LONG.strip()
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert all(line.startswith("    ") for line in lines[2:])


def test_what_is_no_terminal_gets_its_lines_as_they_are() -> None:
    assert columns(io.StringIO()) is None
    assert wrapped(LONG, None) == LONG
    assert fit_line(["train 1/2", "loss 3"], None) == "train 1/2  loss 3"


def test_the_width_of_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours), open(theirs, "w") as terminal:
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
        assert columns(terminal) == 60
        ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert columns(terminal) == 20


PARTS = ["train 1/2", "loss 3.46", "rank 10.5", "trunk_rank 19.66"]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (60, "train 1/2  loss 3.46  rank 10.5  trunk_rank 19.66"),
        (49, "train 1/2  loss 3.46  rank 10.5  trunk_rank 19.66"),
        (48, "train 1/2  loss 3.46  rank 10.5  +1"),
        (34, "train 1/2  loss 3.46  +2"),
        (5, "train 1/2"),
    ],
)
def test_of_many_parts_the_first_ones_are_whole(width: int, line: str) -> None:
    assert fit_line(PARTS, width) == line
