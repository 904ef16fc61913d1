"""Metrics of features that need no labels, by what they look at.

    from sslengine.evaluate.label_free.spectrum import rankme
    rankme(features)                      # Measured(value=31.4, n=2000)

`metric.py` says how to add one, and what they are computed from.
"""

from sslengine.registry import LABEL_FREE

_MODULES = {
    "spectrum": (
        "rankme", "effective_rank", "stable_rank", "participation_ratio", "nesum", "alpha_req",
        "coherence", "lidar",
    ),
    "geometry": (
        "alignment", "uniformity", "two_nn", "id_est", "cluster_learnability", "clid",
        "self_cluster", "view_consistency", "checkpoint_consistency",
    ),
}  # fmt: skip
for _module, _names in _MODULES.items():
    LABEL_FREE.declare(f"{__name__}.{_module}", *_names)
