"""Check what a loss needs of its run, and keys of several sections that contradict each other.

What a loss needs are the arguments of `register_loss`: one message for each.

    @register_loss("my_loss", options=MyOptions, views=2, collators=("simclr_collator",))

The config is checked before it is frozen, and the model when it is built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from sslengine.config.facts import RunFacts, is_sharded, lacks_loss_scaling, run_facts
from sslengine.dotted import below
from sslengine.errors import ConfigError
from sslengine.registry import TRAIN_STEPS, Requirements, component_key, requirements_of

TRAIN = "config.DATA.TRAIN"
Problem = tuple[str, str]  # a key path, and what is needed there
TRUNKS = "vision_transformer, or timm with one of its vision transformers"


def expect_requirements(config: DictConfig, loss: Any, facts: RunFacts) -> None:
    """Raise ConfigError with all that the run does not have and its loss needs."""
    needs, name = requirements_of(loss), component_key(config.LOSS.name)
    _raise(
        name,
        [
            *_view_problems(needs, facts),
            *_data_problems(needs, facts),
            *_crop_problems(config, name, needs, facts),
            *_head_problems(needs, facts),
            *(_patch_problems(config, needs, facts.patch_size) if facts.patch_size else ()),
        ],
    )


def expect_fitting_model(config: DictConfig, loss: Any, model: Any) -> None:
    """Raise ConfigError if the model's trunk does not take what the loss needs."""
    needs, trunk = requirements_of(loss), getattr(model, "trunk", None)
    taken = getattr(trunk, "extra_inputs", ())
    problems: list[Problem] = []
    if needs.trunk_input == "shown" and "shown" not in taken:
        cannot = f"got {type(trunk).__name__}, which cannot leave patches out"
        problems.append(("config.MODEL.TRUNK.NAME", f"{TRUNKS}; {cannot}"))
    elif "shown" in taken:
        problems.extend(_patch_problems(config, needs, getattr(trunk, "patch_size", 0)))
    _raise(component_key(config.LOSS.name), problems)
    if needs.features and trunk is not None:
        trunk.check_features(needs.features, "config.MODEL.TRUNK")


def _raise(name: str, problems: list[Problem]) -> None:
    if problems:
        raise ConfigError("\n".join(f"{path}: {name} needs {what}." for path, what in problems))


def _view_problems(needs: Requirements, facts: RunFacts) -> Iterator[Problem]:
    views = facts.views_per_image
    if (needs.views and views != needs.views) or (needs.several_views and views < 2):
        wanted = f"{needs.views or 'several'} views of an image, and gets {views}"
        first = "ImgPilToMultiCrop" if needs.several_views else "ImgReplicatePil"
        yield f"{TRAIN}.TRANSFORMS", f"{wanted}: begin with {first}"
    if needs.collators and facts.collator not in needs.collators:
        allowed = " or ".join(needs.collators)
        yield f"{TRAIN}.COLLATE_FUNCTION", f"{allowed}, got {facts.collator!r}"


def _data_problems(needs: Requirements, facts: RunFacts) -> Iterator[Problem]:
    batch = facts.global_batch_size
    if batch < needs.images:
        wanted = f"{needs.images} images or more over all ranks, got {batch}"
        yield f"{TRAIN}.BATCHSIZE_PER_REPLICA", wanted
    if needs.sample_index and facts.label_type not in ("", "sample_index"):
        yield f"{TRAIN}.LABEL_TYPE", f"sample_index, got {facts.label_type}"
    if needs.labels and facts.label_type == "sample_index":
        yield f"{TRAIN}.LABEL_SOURCES", "labels of the images"
    if needs.sample_index and facts.test_phases:
        yield "config.TEST_MODEL", "false: it has no rows for samples of test phases"


def _crop_problems(
    config: DictConfig, name: str, needs: Requirements, facts: RunFacts
) -> Iterator[Problem]:
    if needs.crops:
        given = list(below(config.LOSS, (name, *needs.crops.split("."))))
        views = range(facts.views_per_image)
        if not given or not {*given} <= {*views}:
            wanted = f"numbers of crops, from 0 to {views[-1]}, got {given}"
            yield f"config.LOSS.{name}.{needs.crops}", wanted


def _head_problems(needs: Requirements, facts: RunFacts) -> Iterator[Problem]:
    if needs.heads and not {*needs.heads} & {head for head, _ in facts.heads}:
        yield "config.MODEL.HEAD.PARAMS", " or ".join(needs.heads)


def _patch_problems(config: DictConfig, needs: Requirements, size: int) -> Iterator[Problem]:
    given = config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.get("patch_size", needs.patch_size)
    if needs.patch_size and given != size:
        wanted = f"the patches of the trunk, {size}, got {given}"
        yield f"{TRAIN}.COLLATE_FUNCTION_PARAMS.patch_size", wanted


# ---- keys that contradict each other

# The collators that order a batch by views: all images' first views, then their second views.
_COLLATORS = ("simclr_collator", "multicrop_collator")


def expect_no_conflict(config: DictConfig) -> None:
    """Raise one ConfigError that lists all keys that contradict each other."""
    if problems := [f"config.{text}" for text in _conflicts(config)]:
        raise ConfigError("\n".join(problems))


def _conflicts(config: DictConfig) -> Iterator[str]:
    model, distributed, hooks = config.MODEL, config.DISTRIBUTED, config.HOOKS
    compressed, complexity = distributed.GRADIENT_COMPRESSION != "none", hooks.MODEL_COMPLEXITY
    for key, is_set, more in (
        ("DISTRIBUTED.MANUAL_GRADIENT_REDUCTION", distributed.MANUAL_GRADIENT_REDUCTION, ""),
        ("MODEL.CHANNELS_LAST", model.CHANNELS_LAST is True, ""),
        ("HOOKS.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY", complexity.COMPUTE_COMPLEXITY, ""),
        ("DISTRIBUTED.DETECT_ANOMALOUS_PARAMS", distributed.DETECT_ANOMALOUS_PARAMS, ""),
        ("HOOKS.PRECISE_BN.ENABLED", hooks.PRECISE_BN.ENABLED, "; MODEL.SYNC_BN_CONFIG works"),
        ("HOOKS.ONLINE_EVAL.EVERY", hooks.ONLINE_EVAL.EVERY, "; evaluate the checkpoints"),
        ("DISTRIBUTED.GRADIENT_COMPRESSION", compressed, "; see MODEL.FSDP_CONFIG.compute_dtype"),
    ):
        if is_set and is_sharded(config):
            yield f"{key}: not with a sharded model (FSDP){more}. Leave it out."
    if is_sharded(config) and lacks_loss_scaling(config):
        yield (
            "MODEL.FSDP_CONFIG.compute_dtype: float16 requires loss scaling: set "
            "MACHINE.PRECISION=fp16, or MODEL.AMP_PARAMS.USE_AMP=true with AMP_DTYPE float16. Or "
            "use bfloat16."
        )
    if compressed and distributed.MANUAL_GRADIENT_REDUCTION:
        yield "DISTRIBUTED.GRADIENT_COMPRESSION: not with DISTRIBUTED.MANUAL_GRADIENT_REDUCTION."
    if model.COMPILE.USE_COMPILE and model.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING:
        yield (
            "MODEL.COMPILE.USE_COMPILE: not with MODEL.ACTIVATION_CHECKPOINTING, whose second "
            "forward pass must not update batch norms. Set one of them to false."
        )
    if config.MACHINE.PRECISION and model.AMP_PARAMS.USE_AMP:
        yield "MACHINE.PRECISION: not with MODEL.AMP_PARAMS.USE_AMP. Set USE_AMP=false."


def expect_views(config: DictConfig) -> None:
    """Raise a ConfigError if VIEWS_APART would have no effect, or a wrong one."""
    if config.MODEL.VIEWS_APART:
        for problem in _views_apart_problems(config):
            raise ConfigError(f"config.MODEL.VIEWS_APART: {problem}")


def _views_apart_problems(config: DictConfig) -> Iterator[str]:
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
