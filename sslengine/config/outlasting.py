"""What has more epochs than the run, so that it does not come to its end: warm-ups of options,
whose fields are declared with `epochs(...)`, and frozen parameters.
"""

from __future__ import annotations

from sslengine.config.merge import Merged
from sslengine.config.sections import fields_of, typed_nodes

FROZEN = "config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP"


def warn_of_long_warmups(merged: Merged) -> None:
    run = merged.root.config.OPTIMIZER.num_epochs
    for path, node in typed_nodes(merged.root.config) if run else ():
        for key, field in fields_of(node).items():
            if field.metadata.get("epochs") and node[key] > run:
                merged.warnings.append(
                    f"{path}.{key} is {node[key]}, but the run has {run} epochs "
                    f"(config.OPTIMIZER.num_epochs): it ends before the warm-up does"
                )


def warn_of_never_trained(merged: Merged) -> None:
    run = merged.root.config.OPTIMIZER.num_epochs
    for entry in merged.root.config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP if run else ():
        match entry:
            case [str(name), int(epochs)] if epochs >= run:
                merged.warnings.append(
                    f"{FROZEN}: {name} is frozen for {epochs} epochs, and the run has {run} "
                    f"(config.OPTIMIZER.num_epochs): it is never trained"
                )
