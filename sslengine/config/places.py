"""Which place, a file or the command line, set a key. Of two that contradict the later wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from sslengine.config.compose import Composition
from sslengine.config.merge import Merged
from sslengine.dotted import below

BY_DEFAULT = -1
_EPOCHS, _ITERATIONS = "OPTIMIZER.num_epochs", "OPTIMIZER.num_iterations"


class Places:
    """Which place set a key last, as a number: later places have larger ones."""

    def __init__(self, merged: Merged, composition: Composition) -> None:
        self.origins, self.composition = merged.origins, composition
        self._numbers = {each.origin: n for n, each in enumerate(composition.layers)}
        self.command_line = len(composition.layers)

    def of(self, path: str) -> int:
        """-1: neither it nor anything below it was set."""
        below = f"{path}."
        given = [its for key, its in self.origins.items() if key == path or key.startswith(below)]
        return max((self._numbers.get(each, self.command_line) for each in given),
                   default=BY_DEFAULT)  # fmt: skip

    def layer(self, path: str) -> Mapping[str, Any]:
        """What the place that set `path` last says of the section that contains it."""
        number = self.of(path)
        if number == self.command_line:
            return {}
        section = path.split(".")[:-1]
        return below(self.composition.layers[number].tree, section) or {}

    def forget(self, path: str) -> None:
        """What was set there has no effect."""
        for each in [one for one in self.origins if f"{one}.".startswith(f"{path}.")]:
            del self.origins[each]

    def names(self, path: str) -> list[tuple[int, str]]:
        """What the name at `path` was set to, in their order."""
        found: list[tuple[int, str]] = []
        keys = path.split(".")
        for number, layer in enumerate(self.composition.layers):
            found.append((number, below(layer.tree, keys)))
        for each in self.composition.assignments:
            own = each.path.split(".")
            if not each.delete and keys[: len(own)] == own:
                found.append((self.command_line, below(each.value, keys[len(own) :])))
        return [(number, name) for number, name in found if isinstance(name, str)]


def settle_length(merged: Merged, places: Places) -> None:
    """Keep the length of the run, in epochs or in iterations, that was set last.

    One file, or the command line, that sets both is an error.
    """
    config = merged.root.config
    epochs, iterations = (OmegaConf.select(config, key) for key in (_EPOCHS, _ITERATIONS))
    if epochs is None or iterations is None:
        return  # if both are None, the check of OPTIMIZER reports it
    first, second = (places.of(f"config.{key}") for key in (_EPOCHS, _ITERATIONS))
    if first == second:
        merged.problems.append(
            f"config.OPTIMIZER: the length of the run is given twice, as num_epochs ({epochs}) and "
            f"as num_iterations ({iterations}), by {merged.origins[f'config.{_EPOCHS}']}. Set one "
            f"of them."
        )
        return
    given, other = (_EPOCHS, _ITERATIONS) if first > second else (_ITERATIONS, _EPOCHS)
    OmegaConf.update(config, other, None, merge=False)
    merged.origins[f"config.{other}"] = f"derived: {given.rpartition('.')[2]} is set"
