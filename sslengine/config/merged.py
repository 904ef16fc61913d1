"""Hold the config while it is resolved: what each place set, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from sslengine.config.compose import Composition
from sslengine.config.sections import named
from sslengine.config.stored import Path
from sslengine.errors import ConfigError
from sslengine.registry import ENGINES

BY_DEFAULT = -1  # in place of the number of a place


@dataclass
class Root:
    """The top-level keys of a YAML file and of the command line."""

    # What to do: train, extract_features, evaluate, ...
    engine_name: str = named(ENGINES, "train")
    # The index of this node among several nodes, from 0.
    node_id: int = 0
    config: Any = None


@dataclass
class Merged:
    """The config while it is resolved, and what is known of it."""

    composition: Composition
    root: DictConfig
    origins: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # Interpolations that read the environment, as text: see stored.py.
    texts: dict[Path, str] = field(default_factory=dict)

    @property
    def config(self) -> DictConfig:
        return self.root.config  # type: ignore[no-any-return]

    def raise_problems(self) -> None:
        if self.problems:
            problems = list(dict.fromkeys(self.problems))
            more = [f"... and {len(problems) - 12} more"] if len(problems) > 12 else []
            raise ConfigError("\n".join([*problems[:12], *more]))

    def refuse(self, path: str, why: str, origin: str) -> None:
        self.problems.append(f"{path}: {why} Set by {origin}.")

    def place(self, path: str) -> int:
        """Return which place set a key, or one below it, last: later places have larger numbers."""
        below = f"{path}."
        given = {its for key, its in self.origins.items() if key == path or key.startswith(below)}
        return max(map(self.number, given), default=BY_DEFAULT)

    def number(self, origin: str) -> int:
        """Return the number of a place: a file's, or the larger one of the command line."""
        files = [layer.origin for layer in self.composition.layers]
        return files.index(origin) if origin in files else len(files)

    @property
    def command_line(self) -> int:
        return len(self.composition.layers)
