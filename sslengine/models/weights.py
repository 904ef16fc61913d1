"""A model that starts from given weights (`config.MODEL.WEIGHTS_INIT`): those of a file, or of the
library that its trunk is of. What was asked for and could not be loaded is an error, never a shrug.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.errors import CheckpointError, DoesNotFitError, listing
from sslengine.models.attention_heads import expect_heads
from sslengine.models.channels import RGB, fit_channels
from sslengine.models.model import Model
from sslengine.models.model_state import tensors_of
from sslengine.models.named_tensors import (
    beside_trunk,
    copy_tensors,
    mismatches,
    part_of,
    shape_problems,
    skipped,
    without,
)
from sslengine.models.networks import MODEL
from sslengine.models.options import FeatureEvalOptions, ModelOptions, WeightsInitOptions
from sslengine.models.positions import fit_positions
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.weight_content import (
    WHERE,
    of_custom_model,
    of_family,
    of_vissl,
    read_file,
)
from sslengine.models.weight_file import first_line, weights_only
from sslengine.trust import expect_trust

LOG = logging.getLogger("sslengine")

# Of batch norms: each library starts them at 0, and none computes by them.
COUNTERS = "num_batches_tracked"
TO_ADAPT = (
    "\n  Is config.MODEL.TRUNK that of the file? Names can be adapted by REMOVE_PREFIX and "
    "APPEND_PREFIX, and left out by SKIP_LAYERS."
)


@dataclass(frozen=True)
class Loaded:
    """How many tensors came out of a file, and what stayed as it was initialised."""

    trunk: int
    heads: int
    left_out: tuple[str, ...]
    # Of a checkpoint with a student and a teacher: which of them.
    network: str = MODEL
    # The file, or whose they are.
    source: str = ""
    # What the run that wrote the checkpoint called its classes, for each label source.
    classes: tuple[tuple[str, ...], ...] = ()
    # Of the network in the file, what is no part of a trunk: its classifier, a mask token.
    not_taken: tuple[str, ...] = ()
    # What the file was recognised as; "" for sslengine and VISSL, and where prefixes are given.
    kind: str = ""
    # Of the trunk, what SKIP_LAYERS leaves as it was initialised, without batch norms' counters.
    skipped: tuple[str, ...] = ()


def init_weights(model: nn.Module, options: ModelOptions) -> Loaded:
    """From the file that WEIGHTS_INIT names, else from the library that the trunk is of."""
    named = options.WEIGHTS_INIT.PARAMS_FILE
    return init_from_file(model, options) if named else _init_from_library(model, options)


def init_from_file(model: nn.Module, options: ModelOptions) -> Loaded:
    """Start from the weights in WEIGHTS_INIT.PARAMS_FILE.

    All of the trunk must be in the file, and nothing else of a trunk. Heads, or the other parts
    of a custom model, may differ: what is missing there, or left over, is logged. A custom model
    that holds no trunk as `self.trunk` must be there completely.
    """
    weights, settings = options.WEIGHTS_INIT, options.FEATURE_EVAL_SETTINGS
    tensors = tensors_of(model)
    held, expected = read_file(weights), without(tensors, weights.SKIP_LAYERS)
    trunk = getattr(model, "trunk", None)
    if not isinstance(trunk, Trunk):
        return _init_whole(expected, held, weights)
    source = of_family(trunk, held, weights) or of_vissl(trunk, list(expected), held, weights)
    expect_heads(trunk, Path(weights.PARAMS_FILE), f"{WHERE}.PARAMS_FILE")
    given = fit_positions(trunk, without(source.tensors, weights.SKIP_LAYERS))
    given = _in_names_of_heads(model, given)
    given = fit_channels(expected, given, weights)
    expected, given = _mask_token_or_none(expected, given, "trunk.mask_token")
    problems = mismatches(part_of(expected, "trunk"), part_of(given, "trunk"))
    chosen = set(part_of(expected, "trunk"))
    if not settings.EVAL_MODE_ON or settings.EVAL_TRUNK_AND_HEAD:
        heads, head_problems = _choose_heads(beside_trunk(expected), given, settings)
        chosen |= heads
        problems += head_problems
    if problems:
        raise DoesNotFitError(_does_not_fit(weights, problems, given, source.kind))
    copy_tensors(expected, given, chosen)
    loaded = Loaded(
        trunk=sum(name.startswith("trunk.") for name in chosen),
        heads=len(beside_trunk(dict.fromkeys(chosen))),
        left_out=tuple(sorted(set(expected) - chosen)),
        network=source.network,
        classes=source.classes,
        source=weights.PARAMS_FILE,
        not_taken=source.not_taken,
        kind=source.kind,
        skipped=tuple(each for each in part_of(tensors, "trunk")
                      if skipped(each, [*{*weights.SKIP_LAYERS} - {COUNTERS}])),
    )  # fmt: skip
    _log(loaded, sorted(set(given) - chosen), weights.PARAMS_FILE, source.unread)
    return loaded


def _init_whole(expected: Mapping[str, Tensor], held: Any, weights: WeightsInitOptions) -> Loaded:
    source = of_custom_model(held, weights)
    given = fit_channels(expected, without(source.tensors, weights.SKIP_LAYERS), weights)
    problems = mismatches(expected, given)
    if problems:
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE} does not fit the model:\n  "
            + "\n  ".join(problems)
            + "\n  SKIP_LAYERS leaves names out, REMOVE_PREFIX and APPEND_PREFIX adapt them."
        )
    copy_tensors(expected, given, expected)
    LOG.info("%d tensors from %s (%s).", len(expected), weights.PARAMS_FILE, source.network)
    trunk, heads = (len(part_of(expected, part)) for part in ("trunk", "heads"))
    return Loaded(trunk, heads, left_out=(), network=source.network, source=weights.PARAMS_FILE)


def _init_from_library(model: nn.Module, options: ModelOptions) -> Loaded:
    """What the library of the trunk has under the network's name."""
    trunk, library = trunk_of(model), options.TRUNK.library()
    assert library is not None
    assert isinstance(trunk, ByName)
    where, skip = f"{trunk.section}.pretrained", options.WEIGHTS_INIT.SKIP_LAYERS
    source = f"{library.library}'s weights of {library.model}"
    expect_trust(f"{source} would be downloaded", where, where, library.model)
    try:
        with weights_only(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            given = without(trunk.library_weights(trunk.in_chans or RGB), skip)
    except Exception as error:  # without a network there are many
        raise CheckpointError(
            f"{where}: {source} cannot be fetched: {first_line(error)}\n  Where there is no "
            f"network, copy the file here and set {WHERE}.PARAMS_FILE."
        ) from error
    expected = without(dict(trunk.state_dict()), skip)
    expected, given = _mask_token_or_none(expected, given, "mask_token")
    problems = mismatches(expected, given)
    if problems:
        raise CheckpointError(f"{where}: {source} do not fit:\n  " + "\n  ".join(problems))
    copy_tensors(expected, given, expected)
    heads = sorted(part_of(tensors_of(model), "heads"))
    loaded = Loaded(len(expected), 0, left_out=tuple(heads), source=source)
    _log(loaded, [], source)
    return loaded


def expect_whole(loaded: Loaded) -> None:
    """Raise if a part of the trunk was not in the file, and so is as it was initialised."""
    if loaded.skipped:
        raise CheckpointError(
            f"{loaded.source} was asked to leave out {listing(loaded.skipped)}, which the network "
            f"has: its numbers would be random ones. Only what is in the file alone can be left "
            f"out, such as a classifier."
        )


def trunk_of(model: nn.Module) -> nn.Module | None:
    return model.trunk if isinstance(model, Model) else None


def other_classes(then: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """What to say where weights were trained on other classes than this run has; "" if not."""
    known = [(list(a), list(b)) for a, b in zip(then, now, strict=False) if a and b]
    if all(one == other for one, other in known):
        return ""
    return (
        f"the checkpoint's classes ({listing(then[0], 8)}) are not those of config.DATA.TRAIN "
        f"({listing(now[0], 8)}), which are used here: what its heads say of classes is void"
    )


def _mask_token_or_none(
    expected: dict[str, Tensor], given: dict[str, Tensor], name: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The token that hides patches in training may be missing in a file, or left over, or be that
    of a decoder. Files have it as 1 x D and as 1 x 1 x D."""
    own, theirs = expected.get(name), given.get(name)
    if own is not None and theirs is not None and own.numel() == theirs.numel():
        return expected, {**given, name: theirs.reshape(own.shape)}
    return without(expected, [name]), without(given, [name])


def _in_names_of_heads(model: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A head whose tensors VISSL calls otherwise says so: names_in_vissl, theirs to its own."""
    table = {
        f"{path}.{theirs}.": f"{path}.{ours}."
        for path, module in model.named_modules()
        for theirs, ours in getattr(module, "names_in_vissl", {}).items()
    }

    def named(name: str) -> str:
        found = (
            ours + name[len(theirs) :] for theirs, ours in table.items() if name.startswith(theirs)
        )
        return next(found, name)

    return {named(name) if table else name: tensor for name, tensor in given.items()}


def _choose_heads(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], settings: FeatureEvalOptions
) -> tuple[set[str], list[str]]:
    """The names to load, and what is wrong."""
    present = {name for name in expected if name in given}
    problems = []
    if settings.EVAL_TRUNK_AND_HEAD and present != set(expected):
        missing = listing(set(expected) - present)
        problems.append(f"missing, and EVAL_TRUNK_AND_HEAD asks for the heads: {missing}")
    if settings.ASSERT_HEAD_LAYER_SHAPE_INIT:
        return present, problems + shape_problems(expected, given)
    return {name for name in present if given[name].shape == expected[name].shape}, problems


def _does_not_fit(
    weights: WeightsInitOptions, problems: list[str], given: Mapping[str, Tensor], kind: str
) -> str:
    whose = f", {kind}," if kind else ""
    text = f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE}{whose} does not fit the model:\n  "
    text += "\n  ".join(problems)
    if not part_of(given, "trunk"):
        text += f"\n  The file has no trunk; its names: {listing(given, 8) or 'none'}."
    return f"{text}{TO_ADAPT}"


def _log(loaded: Loaded, unused: list[str], path: str, unread: str = "") -> None:
    if loaded.kind:
        LOG.info("%s is %s.", path, loaded.kind)
    LOG.info(
        "%d trunk and %d head tensors from %s.", loaded.trunk, loaded.heads, path,
        extra={"on_screen": True},
    )  # fmt: skip
    if loaded.network != MODEL:
        LOG.info("They are the %s's (%s.NETWORK).", loaded.network, WHERE)
    if left := [*loaded.skipped, *loaded.left_out]:
        LOG.info("As initialised, not from the file: %s.", listing(left))
    if unused or unread:
        LOG.info("In the file and not used: %s.", unread or listing(unused))
