"""Checks of the config, the batch and the model's output for losses on views of an image.

A batch has the first views of all images first, then the second views, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.errors import ConfigError, TrainingError


def expect_two_views(facts: RunFacts, loss: str) -> None:
    """Raise ConfigError unless the transforms make two views."""
    if facts.views_per_image != 2:
        raise ConfigError(
            f"{loss} compares two views of an image, but config.DATA.TRAIN.TRANSFORMS make "
            f"{facts.views_per_image}. The first entry should be `name: ImgReplicatePil`, "
            f"`num_times: 2`."
        )


def expect_crops(facts: RunFacts, where: str, collators: Sequence[str]) -> None:
    """Raise ConfigError unless there are several crops, collated as a list."""
    if facts.views_per_image < 2:
        raise ConfigError(
            f"{where}: compares crops of an image, but config.DATA.TRAIN.TRANSFORMS make "
            f"{facts.views_per_image}. The first entry should be `name: ImgPilToMultiCrop`."
        )
    if facts.collator not in collators:
        raise ConfigError(
            f"{where}: config.DATA.TRAIN.COLLATE_FUNCTION must be {' or '.join(collators)}, "
            f"got {facts.collator!r}."
        )


def split_views(output: Any, loss: str) -> Tensor:
    """Reshape (2B, D) to (2, B, D): the first views of all images, then the second ones."""
    images = images_of(output, loss)
    views: Tensor = output.unflatten(0, (2, images))
    return views


def images_of(output: Any, loss: str, count: int = 2) -> int:
    """Check that the output is (count * B, D), a row for each view; return B."""
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] % count:
        raise TrainingError(
            f"{loss} needs one embedding ({count}B, D), a row for each of the {count} views of "
            f"every image; the model returned {described(output)}. Is DATA.TRAIN.COLLATE_FUNCTION "
            f"{'simclr_collator' if count == 2 else 'multicrop_collator'}, and does the model end "
            f"in one head?"
        )
    return output.shape[0] // count


def inputs_of(sample: Any, loss: str, keys: Sequence[str], made_by: str = "") -> list[Tensor]:
    """These parts of the model's input; made_by: what the data needs for them."""
    given = sample["input"]
    if isinstance(given, dict) and given.keys() >= {*keys}:
        return [given[key] for key in keys]
    needs = f"config.DATA.TRAIN.INPUT_KEY_NAMES=[{', '.join(keys)}] (and TEST's)"
    raise TrainingError(f"{loss} needs {needs}{f', and {made_by}' if made_by else ''}.")


def described(output: object) -> str:
    """The shapes of a model's output, for an error message."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if isinstance(output, (list, tuple)):
        return f"[{', '.join(described(each) for each in output)}]"
    return type(output).__name__


def expect_input(model: nn.Module, name: str, loss: str, route: str) -> None:
    """Raise unless a route of the model passes this input to the trunk.

    route: an example for the error. A model of another kind than trunk and heads has no routes.
    """
    routes = getattr(model, "routes", ())
    if routes and all(name not in each.additional_keys for each in routes):
        raise ConfigError(
            f"config.MODEL.MULTI_INPUT_HEAD_MAPPING: {loss} needs a route with additional_keys: "
            f"[{name}], such as {route}. Without it the model sees the patches that it predicts."
        )
