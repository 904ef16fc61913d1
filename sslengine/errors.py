"""The errors that a user can cause and correct.

Each text says what is wrong, where (a key path or a file) and what to do. The command line
prints the text alone, without a traceback. A bug may still assert.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# What `${` becomes in a config that was opened without trust: see config/yaml_text.py.
NOT_READ = "$not_read{"


class SSLEngineError(Exception):
    """Base of all errors with a text for users, who wrote `${` where NOT_READ is."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(readable(each, but="\n\t").replace(NOT_READ, "${")
                           if isinstance(each, str) else each for each in parts))  # fmt: skip


class ConfigError(SSLEngineError):
    """The YAML or the command line is wrong."""


class UnknownNameError(ConfigError):
    """A name that is not in the registry."""


class UntrustedError(ConfigError):
    """A file would run code, and the user has not trusted it."""


class DataError(SSLEngineError):
    """A dataset is missing or empty, or differs from the config."""


class MissingDataError(DataError, ConfigError):
    """What was named as data is not there."""


class OutputError(ConfigError):
    """What is to be written cannot have this name: it is taken, or has the wrong ending."""


class CheckpointError(SSLEngineError):
    """A checkpoint is missing, broken, or of another model."""


class DoesNotFitError(CheckpointError):
    """The tensors of a file are not those of the model."""


class MissingCheckpointError(CheckpointError, ConfigError):
    """What was named as a checkpoint, or as a run, is not one."""


class FolderInUseError(CheckpointError):
    """Another run is using the folder, its log too."""


class ExportError(SSLEngineError):
    """The trunk cannot be written in a format, or what was written is not the same network."""


class TrainingError(SSLEngineError):
    """Training cannot continue."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite. parts: what it was made of, by name; iteration: the step,
    counted from 1."""

    def __init__(
        self, text: str, parts: Mapping[str, float] | None = None, iteration: int | None = None
    ) -> None:
        super().__init__(text)
        self.parts, self.iteration = dict(parts or {}), iteration

    def add(self, advice: str) -> None:
        """Add a line to the text."""
        self.args = (f"{self}\n  {advice}",)


class CollapseError(TrainingError):
    """The features of the images, or of the patches, have become equal."""


class UnexpectedResultError(SSLEngineError):
    """The run is complete, but a metric differs from config.EXPECTED_RESULTS."""


class LaunchError(SSLEngineError):
    """The processes of a run could not be started, or one of them failed."""


class Preempted(SSLEngineError):
    """A signal ended the run, which is saved and can be resumed. The exit status is 75."""


def readable(text: object, but: str = "") -> str:
    """Escape characters that control a terminal in untrusted text, such as a file's name.

    These are control characters, changes of the writing direction and bytes that are not UTF-8:
    \\x1b, \\u202e, \\udce9. Characters in `but` are not escaped.
    """
    return "".join(
        each if each.isprintable() or each in but else each.encode("unicode_escape").decode()
        for each in str(text)
    )


def is_unicode(text: str) -> bool:
    """Return False for a file's name whose bytes are not UTF-8: Python gives it surrogates."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the closest known names, or an empty string."""
    lowered = {candidate.lower(): candidate for candidate in known}
    wanted = str(name).lower()
    # After close names: two letters swapped in a short word, or a part of a longer name.
    matches = (
        difflib.get_close_matches(wanted, lowered, n=3, cutoff=0.6)
        or difflib.get_close_matches(wanted, lowered, n=1, cutoff=0.5)
        or [each for each in sorted(lowered) if len(wanted) > 3 and wanted in each][:3]
    )
    found = " or ".join(repr(lowered[each]) for each in matches)
    return f"Did you mean {found}?" if found else ""


def listing(names: Iterable[str], limit: int = 30) -> str:
    """Return `a, b, c`, sorted, with at most `limit` names."""
    ordered = sorted(map(readable, names))
    shown = ", ".join(ordered[:limit])
    return shown if len(ordered) <= limit else f"{shown}, ... ({len(ordered)} in all)"
