"""Is the run good, and what comes next? One table of rules gives one sentence and one command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    rule: str  # failed, collapsing, stopped, running, unlabelled, learned nothing, ...
    status: str  # complete, running, stopped, failed
    sentence: str
    detail: str = ""
    command: str = ""
    # What makes the sentence doubtful.
    caveats: Sequence[str] = ()
