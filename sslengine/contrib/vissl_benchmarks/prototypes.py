"""`extract_cluster`: the prototype to which each image belongs, of a model whose head has them.

VISSL's files are written into the run's folder:

    cluster_assignments.torch                       {"cluster_assignments": {split: {image: N}}}
    {split}_images.npy, {split}_labels.npy          a disk_filelist: images, and clusters as classes
    rank0_chunk0_{split}_heads_{protos,inds}.npy    the scores
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from sslengine.atomic import whole_file
from sslengine.contrib.vissl_benchmarks.inputs import stored_splits
from sslengine.distributed.ranks import is_primary
from sslengine.engines.features import Compute, paths_of, save, splits
from sslengine.engines.run import Run
from sslengine.errors import ConfigError
from sslengine.models.build import trunk_with_heads
from sslengine.registry import register_engine

LAYER = "heads"


@register_engine("extract_cluster")
def extract_cluster(run: Run) -> None:
    """All ranks compute scores; rank 0 writes the files, and the other ranks do not wait."""
    found = stored_splits(run, splits(run), labels=False, outputs=prototype_scores)
    if not is_primary():
        return
    assignments: dict[str, dict[int, int]] = {}
    for split, stored in found.items():
        store, name = stored.stores["trained"], split.lower()
        scores, indices = store.layer(LAYER).tensor().float(), store.indices
        clusters = scores.argmax(dim=1)
        assignments[split] = dict(zip(indices.tolist(), clusters.tolist(), strict=True))
        save(run.run_dir / f"{name}_images.npy", np.array(paths_of(stored.dataset, indices)))
        save(run.run_dir / f"{name}_labels.npy", clusters.numpy())
        save(run.run_dir / f"rank0_chunk0_{name}_heads_protos.npy", scores.numpy())
        save(run.run_dir / f"rank0_chunk0_{name}_heads_inds.npy", indices.numpy())
        used = len(clusters.unique())
        run.say(f"{name}: {len(clusters)} images in {used} of {scores.shape[1]} clusters")
    content = {"config": OmegaConf.to_container(run.config), "cluster_assignments": assignments}
    with whole_file(run.run_dir / "cluster_assignments.torch") as file:
        torch.save(content, file)
    run.say(f"  files       {run.run_dir}")


def prototype_scores(any_model: nn.Module) -> Compute:
    """A function: input -> the scores of the first set of prototypes, in eval mode."""
    model = trunk_with_heads(any_model, "assigning images to prototypes")
    heads = [each for each in model.modules() if hasattr(each, "prototypes")]
    if len(heads) != 1:
        raise ConfigError(
            "config.MODEL.HEAD.PARAMS: extract_cluster needs a head with prototypes, as SwAV's; "
            "features without them are clustered by cluster_features_and_label."
        )
    prototypes: Any = heads[0].prototypes
    sets = len(prototypes)

    def compute(images: Any) -> dict[str, Tensor]:
        model.eval()
        return {LAYER: model(images)[-sets]}  # before it there may be embeddings

    return compute
