"""The base of all suites: one component and its test settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sslengine.errors import ConfigError
from sslengine.registry import component_key


@dataclass(frozen=True)
class Trial:
    """The arguments of `contract`, and a folder."""

    component: str
    arguments: Mapping[str, Any]
    overrides: Sequence[str]
    unchanged: Sequence[str]
    folder: Path


class Suite:
    kind: ClassVar[str] = ""
    trains: ClassVar[bool] = False  # does it test components in training runs?

    def __init__(self, trial: Trial) -> None:
        self.component, self.arguments = trial.component, dict(trial.arguments)
        self.name, self.folder = component_key(trial.component), trial.folder
        self.promises: Sequence[str] = ()  # the names of those to test
        for name in () if self.trains else ("overrides", "unchanged"):
            if getattr(trial, name):
                raise ConfigError(
                    f"contract({self.kind!r}, {self.component!r}): a {self.kind} is tested without "
                    f"a training run, so {name}= has no effect. Omit it."
                )
