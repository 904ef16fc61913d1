"""The length of a run: either `OPTIMIZER.num_epochs` or `OPTIMIZER.num_iterations`.

If one file (or the command line) sets both, that is an error. If they are set in different places,
the later one (the command line after the files) takes effect, and the other becomes null.
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
        return  # if both are None, the check of OPTIMIZER reports it
    places = [layer.origin for layer in composition.layers]

    def place(key: str) -> int:
        """Return the number of the layer that set it last; the command line has the largest."""
        origin = merged.origins.get(f"config.{key}")
        if origin is None:
            return -1  # the default
        return places.index(origin) if origin in places else len(places)

    first, second = place(EPOCHS), place(ITERATIONS)
    if first == second:
        merged.problems.append(
            f"config.OPTIMIZER: the length of the run is given twice, as num_epochs ({epochs}) and "
            f"as num_iterations ({iterations}), by {merged.origins[f'config.{EPOCHS}']}. Set one "
            f"of them."
        )
        return
    given, other = (EPOCHS, ITERATIONS) if first > second else (ITERATIONS, EPOCHS)
    OmegaConf.update(config, other, None, merge=False)
    merged.origins[f"config.{other}"] = f"derived: {given.rpartition('.')[2]} is set"
