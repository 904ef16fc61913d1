"""Check `MODEL.VIEWS_APART`: images have several views, which reach the model in one batch.

Only training is checked. An evaluation reads one view of each image, in eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from sslengine.config.facts import run_facts
from sslengine.errors import ConfigError
from sslengine.registry import TRAIN_STEPS

# The collators that order a batch by views: all images' first views, then their second views.
_COLLATORS = ("simclr_collator", "multicrop_collator")


def expect_views(config: DictConfig) -> None:
    """Raise a ConfigError if the key would have no effect, or a wrong one."""
    if config.MODEL.VIEWS_APART:
        for problem in _problems(config):
            raise ConfigError(f"config.MODEL.VIEWS_APART: {problem}")


def _problems(config: DictConfig) -> Iterator[str]:
    facts, step = run_facts(config), config.TRAINER.TRAIN_STEP_NAME
    if config.MODEL.BASE_MODEL_NAME != "multi_input_output_model":
        yield "a custom model (BASE_MODEL_NAME) does not use it. Set it to false."
    if config.MODEL.MULTI_INPUT_HEAD_MAPPING:
        yield "each input of MULTI_INPUT_HEAD_MAPPING is a separate batch anyway. Set it to false."
    if facts.views_per_image < 2:
        yield "config.DATA.TRAIN.TRANSFORMS make one view of an image. Set it to false."
    if facts.collator not in _COLLATORS:
        yield (
            f"config.DATA.TRAIN.COLLATE_FUNCTION must be {' or '.join(_COLLATORS)}, "
            f"got {facts.collator!r}."
        )
    if getattr(TRAIN_STEPS.get(step), "in_chunks", False):
        yield f"{step} splits a batch into chunks in another way. Set it to false."
