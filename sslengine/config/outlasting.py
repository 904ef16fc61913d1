"""Warm-ups of options that have more epochs than the run, so that they do not come to their end.

Fields that count epochs are declared with `epochs(...)`.
"""

from __future__ import annotations

from sslengine.config.merge import Merged
from sslengine.config.sections import fields_of, typed_nodes


def warn_of_long_warmups(merged: Merged) -> None:
    run = merged.root.config.OPTIMIZER.num_epochs
    for path, node in typed_nodes(merged.root.config) if run else ():
        for key, field in fields_of(node).items():
            if field.metadata.get("epochs") and node[key] > run:
                merged.warnings.append(
                    f"{path}.{key} is {node[key]}, but the run has {run} epochs "
                    f"(config.OPTIMIZER.num_epochs): it ends before the warm-up does"
                )
