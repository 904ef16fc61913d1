"""The errors that a user can cause and correct.

Each text says what is wrong, where (a key path or a file) and what to do. The command line
prints the text alone, without a traceback. A bug may still assert.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class SSLEngineError(Exception):
    """Base of all errors with a text for users."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(readable(each, but="\n\t") if isinstance(each, str) else each
                           for each in parts))  # fmt: skip


class ConfigError(SSLEngineError):
    """The YAML or the command line asks for something impossible."""


class UnknownNameError(ConfigError):
    """A name that no registry knows."""


class UntrustedError(ConfigError):
    """A file would run code, and the user did not say to trust it."""


class DataError(SSLEngineError):
    """A dataset that is missing, empty, or not as the config says."""


class CheckpointError(SSLEngineError):
    """A checkpoint that is missing, broken, or made by another model."""


class ExportError(SSLEngineError):
    """The trunk cannot be written in a format, or what was written is not the same network."""


class TrainingError(SSLEngineError):
    """Training cannot continue."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""


class UnexpectedResultError(SSLEngineError):
    """The run is complete, and a metric is not what config.EXPECTED_RESULTS says."""


class LaunchError(SSLEngineError):
    """The processes of a run could not be started, or one of them failed."""


class Preempted(SSLEngineError):
    """The run was asked to end and is saved: start it again. The command ends with status 75."""


def readable(text: object, but: str = "") -> str:
    """Text from elsewhere, such as a file's name, without characters that control a terminal.

    Control characters, those that turn the direction of writing and bytes that are not UTF-8
    are escaped: \\x1b, \\u202e, \\udce9. Line feeds too, unless they are in `but`.
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(
        each if each.isprintable() or each in but else each.encode("unicode_escape").decode()
        for each in plain
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` for the closest known names, or an empty string."""
    lowered = {candidate.lower(): candidate for candidate in known}
    wanted = str(name).lower()
    matches = difflib.get_close_matches(wanted, lowered, n=3, cutoff=0.6)
    if not matches:  # two letters swapped in a short word, or a part of a longer name
        matches = difflib.get_close_matches(wanted, lowered, n=1, cutoff=0.5)
        matches = (
            matches or [each for each in sorted(lowered) if len(wanted) > 3 and wanted in each][:3]
        )
    if not matches:
        return ""
    return f"Did you mean {' or '.join(repr(lowered[match]) for match in matches)}?"


def listing(names: Iterable[str], limit: int = 30) -> str:
    """`a, b, c` in order, cut after `limit` names."""
    ordered: Sequence[str] = sorted(map(readable, names))
    shown = ", ".join(ordered[:limit])
    return shown if len(ordered) <= limit else f"{shown}, ... ({len(ordered)} in all)"
