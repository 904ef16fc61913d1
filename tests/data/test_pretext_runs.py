"""Small whole runs on what the transforms and collators of this folder make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.functional import to_tensor

from sslengine.data.augment.jigsaw import distinct_permutations
from sslengine.engine import loop
from sslengine.hooks.events import Hook
from tests.engine.runs import Stop, Watch, make_task, same, weights

CROSS_ENTROPY = "cross_entropy_multiple_output_single_target"
TO_TENSOR = {"name": "ToTensor"}


def recipe(source: str, transforms: list[Any], collator: str, heads: list[Any]) -> dict[str, Any]:
    return {
        "DATA__TRAIN__DATA_SOURCES": [source],
        "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": source == "synthetic",
        "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 20,
        "DATA__TRAIN__TRANSFORMS": transforms,
        "DATA__TRAIN__COLLATE_FUNCTION": collator,
        "MODEL__HEAD__PARAMS": heads,
        "LOSS__name": CROSS_ENTROPY,
    }


ROTNET = recipe(
    "upright_shapes",
    [{"name": "RandomResizedCrop", "size": 12}, {"name": "ImgRotatePil"}, TO_TENSOR],
    "default_collate",
    [["mlp", {"dims": [32, 4]}]],
)
JIGSAW = recipe(
    "shapes",
    [
        {"name": "RandomCrop", "size": 18},
        TO_TENSOR,
        {"name": "ImgPatchesFromTensor", "num_patches": 4, "patch_jitter": 1},
        {"name": "ShuffleImgPatches", "num_perms": 5, "num_patches": 4},
    ],
    "siamese_collator",
    [
        ["mlp", {"dims": [32, 8], "use_relu": True, "skip_last_layer_relu_bn": False}],
        ["siamese_concat_view", {"num_towers": 4}],
        ["mlp", {"dims": [32, 5]}],
    ],
)
MULTICROP = recipe(
    "synthetic",
    [
        {
            "name": "ImgPilToMultiCrop",
            "total_num_crops": 4,
            "num_crops": [2, 2],
            "size_crops": [12, 8],
            "crop_scales": [[0.4, 1.0], [0.1, 0.4]],
        },
        {
            "name": "ImgPilMultiCropRandomApply",
            "transforms": [{"name": "ImgPilGaussianBlur", "p": 1.0}],
            "prob": [1.0, 0.1, 0.5, 0.5],
        },
        TO_TENSOR,
    ],
    "multicrop_collator",
    [["mlp", {"dims": [32, 16]}]],
)
RUNS = {"rotnet": ROTNET, "jigsaw": JIGSAW, "multicrop": MULTICROP}


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, first, second = Watch(), Watch(stop_after=3), Watch()
    complete = make_task(tmp_path, [whole], **RUNS[name])
    loop.run(complete)
    stopped = make_task(tmp_path, [first], **RUNS[name])
    with pytest.raises(Stop):
        loop.run(stopped)
    state = stopped.get_classy_state(deep_copy=True)
    resumed = make_task(tmp_path, [second], **RUNS[name])
    resumed.set_classy_state(state)
    loop.run(resumed)
    assert first.losses + second.losses == whole.losses
    assert len(second.losses) == len(whole.losses) - 3 > 0
    assert same(weights(resumed), weights(complete))


class Undo(Hook):
    """Checks that each label says how its image was changed: undone, it is the source's."""

    def __init__(self, name: str) -> None:
        self.pretext = name
        self.labels: set[int] = set()

    def on_forward(self, task: Any) -> None:
        batch = task.last_batch
        count, dataset = len(batch.target), task.train_feed.dataset
        for index, label, images in zip(
            batch.indices.tolist(), batch.target.tolist(), batch.sample["input"].chunk(count)
        ):
            original = to_tensor(dataset.sources[0].image(int(dataset.rows[index])))
            if self.pretext == "rotnet":
                assert torch.equal(torch.rot90(images[0], -label, (1, 2)), original)
            else:
                # With a jitter of 1 a patch is its cell without the last row and column.
                cells = original.unfold(1, 10, 10).unfold(2, 10, 10)[..., :9, :9]
                patches = cells.permute(2, 1, 0, 3, 4).flatten(0, 1)
                assert torch.equal(images, patches[list(distinct_permutations(5, 4)[label])])
            self.labels.add(label)


@pytest.mark.parametrize(("name", "classes"), [("rotnet", 4), ("jigsaw", 5)])
def test_the_label_says_what_was_done_to_the_image(name: str, classes: int, tmp_path: Path) -> None:
    changes = dict(RUNS[name])
    # Without the random crop that comes first.
    changes["DATA__TRAIN__TRANSFORMS"] = changes["DATA__TRAIN__TRANSFORMS"][1:]
    undo = Undo(name)
    loop.run(make_task(tmp_path, [undo], **changes))
    assert undo.labels == set(range(classes))
