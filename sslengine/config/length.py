"""How long a run is: `OPTIMIZER.num_epochs` or `OPTIMIZER.num_iterations`, one of them.

Where one place gives both, that is an error. Where a later one gives the other (the command line
over a file), the later one counts, and the one that does not count becomes null.
"""

from __future__ import annotations

from omegaconf import OmegaConf

from sslengine.config.compose import Composition
from sslengine.config.merge import Merged

EPOCHS, ITERATIONS = "OPTIMIZER.num_epochs", "OPTIMIZER.num_iterations"


def settle_length(merged: Merged, composition: Composition) -> None:
    config = merged.root.config
    epochs, iterations = (OmegaConf.select(config, key) for key in (EPOCHS, ITERATIONS))
    if epochs is None or iterations is None:
        return  # that both are is for OPTIMIZER's own check to tell
    places = [layer.origin for layer in composition.layers]

    def place(key: str) -> int:
        """Where it was set last: a layer's number; after them all, the command line."""
        origin = merged.origins.get(f"config.{key}")
        if origin is None:
            return -1  # by default
        return places.index(origin) if origin in places else len(places)

    first, second = place(EPOCHS), place(ITERATIONS)
    if first == second:
        merged.problems.append(
            f"config.OPTIMIZER: the length of the run is given twice, as num_epochs ({epochs}) and "
            f"as num_iterations ({iterations}), by {merged.origins[f'config.{EPOCHS}']}. Give one "
            f"of them."
        )
        return
    given, loser = (EPOCHS, ITERATIONS) if first > second else (ITERATIONS, EPOCHS)
    OmegaConf.update(config, loser, None, merge=False)
    merged.origins[f"config.{loser}"] = f"derived: {given.rpartition('.')[2]} is given"
