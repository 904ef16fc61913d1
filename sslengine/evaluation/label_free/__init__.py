"""Metrics of features that need no labels, one idea in each file.

    from sslengine.evaluation.label_free.ranks import rankme
    rankme(features)                      # Measured(value=31.4, n=2000)

`metric.py` says how to add one, `inputs.py` what they are computed from.
"""

from sslengine.registry import LABEL_FREE

_MODULES = {
    "ranks": ("rankme", "effective_rank", "stable_rank", "participation_ratio", "nesum"),
    "power_law": ("alpha_req",),
    "lidar": ("lidar",),
    "two_nn": ("two_nn",),
    "clid": ("cluster_learnability", "clid"),
    "self_cluster": ("self_cluster",),
    "coherence": ("coherence",),
    "sphere": ("alignment", "uniformity"),
    "id_est": ("id_est",),
    "consistency": ("view_consistency", "checkpoint_consistency"),
}
for _module, _names in _MODULES.items():
    LABEL_FREE.declare(f"{__name__}.{_module}", *_names)
