"""A model that starts from given weights (`config.MODEL.WEIGHTS_INIT`): those of a file, or of the
library that its trunk is of. What was asked for and could not be loaded is an error, never a shrug.

A file may be a checkpoint of sslengine or VISSL, a plain state dict with the prefixes that are
given, or a checkpoint of a family in names.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sslengine.errors import CheckpointError, DoesNotFitError, listing
from sslengine.models.lora import OWN, merge_lora_tensors
from sslengine.models.options import FeatureEvalOptions, ModelOptions, WeightsInitOptions
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.weights import MODEL, TEACHER
from sslengine.models.weights.fit import RGB, expect_heads, fit_channels, fit_positions
from sslengine.models.weights.names import find_others, recognise, rename
from sslengine.models.weights.read import WHERE, first_line, read_params_file, weights_only
from sslengine.models.weights.state import (
    choose,
    copy_tensors,
    flatten,
    list_tensors,
    mismatches,
    shape_problems,
)
from sslengine.trust import expect_trust

LOG = logging.getLogger("sslengine")
T = TypeVar("T")

# Of batch norms: each library starts them at 0, and none computes by them.
COUNTERS = "num_batches_tracked"
TO_ADAPT = (
    "\n  Is config.MODEL.TRUNK that of the file? Names can be adapted by REMOVE_PREFIX and "
    "APPEND_PREFIX, and left out by SKIP_LAYERS."
)
# VISSL wraps the trunk in another module where features are extracted.
_EXTRACTOR = "trunk.base_model."


@dataclass(frozen=True)
class Loaded:
    """How many tensors came out of a file, and what stayed as it was initialised."""

    trunk: int = 0
    heads: int = 0
    left_out: tuple[str, ...] = ()
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
    # What else the file holds.
    unread: str = ""
    # Of the trunk, what SKIP_LAYERS leaves as it was initialised, without batch norms' counters.
    skipped: tuple[str, ...] = ()


def init_weights(model: nn.Module, options: ModelOptions) -> Loaded:
    """Start from the file that WEIGHTS_INIT names, else from the library that the trunk is of."""
    named = options.WEIGHTS_INIT.PARAMS_FILE
    return init_from_file(model, options) if named else _init_from_library(model, options)


def init_from_file(model: nn.Module, options: ModelOptions) -> Loaded:
    """Start from the weights in WEIGHTS_INIT.PARAMS_FILE.

    All of the trunk must be in the file, and nothing else of a trunk. Heads, or the other parts
    of a custom model, may differ: what is missing there, or left over, is logged. A custom model
    that holds no trunk as `self.trunk` must be there completely.
    """
    weights, settings = options.WEIGHTS_INIT, options.FEATURE_EVAL_SETTINGS
    tensors = list_tensors(model)
    held, expected = read_params_file(weights), _leave_out(tensors, [*weights.SKIP_LAYERS, OWN])
    trunk = getattr(model, "trunk", None)
    if not isinstance(trunk, Trunk):
        return _init_whole(expected, held, weights)
    found, file = _find_family(trunk, held, weights) or _find_own(trunk, held, weights)
    expect_heads(trunk, Path(weights.PARAMS_FILE), f"{WHERE}.PARAMS_FILE")
    given = fit_positions(trunk, _leave_out(found, weights.SKIP_LAYERS))
    given = _rename_heads(model, given)
    given = fit_channels(expected, given, weights)
    expected, given = _match_mask_tokens(expected, given, "trunk.mask_token")
    problems = mismatches(_part(expected, "trunk"), _part(given, "trunk"))
    chosen = set(_part(expected, "trunk"))
    if not settings.EVAL_MODE_ON or settings.EVAL_TRUNK_AND_HEAD:
        heads, head_problems = _choose_heads(_others(expected), given, settings)
        chosen |= heads
        problems += head_problems
    if problems:
        raise DoesNotFitError(_describe_misfit(weights, problems, given, file.kind))
    copy_tensors(expected, given, chosen)
    skipped = [*{*weights.SKIP_LAYERS} - {COUNTERS}]
    loaded = replace(
        file,
        trunk=sum(name.startswith("trunk.") for name in chosen),
        heads=sum(not name.startswith("trunk.") for name in chosen),
        left_out=tuple(sorted(set(expected) - chosen)),
        source=weights.PARAMS_FILE,
        unread=file.unread or listing(set(given) - chosen),
        skipped=tuple(name for name in _part(tensors, "trunk") if _skips(skipped, name)),
    )
    _log(loaded)
    return loaded


def _init_whole(expected: Mapping[str, Tensor], held: Any, weights: WeightsInitOptions) -> Loaded:
    """Load all of a model that is no trunk with heads."""
    content = _reach(held, weights)
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    parts = _parts(content)
    tensors = _strip(content, weights) if parts is None else flatten(parts)
    given = fit_channels(expected, _leave_out(tensors, weights.SKIP_LAYERS), weights)
    if problems := mismatches(expected, given):
        raise CheckpointError(_describe_misfit(weights, problems, given))
    copy_tensors(expected, given, expected)
    LOG.info("%d tensors from %s (%s).", len(expected), weights.PARAMS_FILE, network)
    trunk, heads = (len(_part(expected, part)) for part in ("trunk", "heads"))
    return Loaded(trunk, heads, left_out=(), network=network, source=weights.PARAMS_FILE)


def init_method(method: nn.Module, options: ModelOptions) -> None:
    """Start the networks of a method that owns them as those of the checkpoint, where these fit.

    Heads of a checkpoint of the other form have their names here in `earlier_names`.
    """
    weights = options.WEIGHTS_INIT
    held = read_params_file(weights)
    content = _reach(held, weights)
    if not isinstance(content.get("loss"), Mapping):
        return
    chosen, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    earlier: Mapping[str, str] = getattr(method, "earlier_names", {})
    given = {
        after + name.removeprefix(before): tensor
        for name, tensor in flatten(_parts(chosen) or {}).items()
        for before, after in earlier.items()
        if name.startswith(before)
    }
    copies = _name_copies(method) if network == TEACHER else {}
    for name, tensor in content["loss"].items():
        copied = next((each for each in copies if name.startswith(each)), "")
        if bool(copied) == bool(copies):
            given[copies.get(copied, "") + name.removeprefix(copied)] = tensor
    expected = {
        f"{path}.{name}": tensor
        for path, each in method.named_children()
        if any(own.requires_grad for own in each.parameters())
        for name, tensor in each.state_dict().items()
    }
    fitting = [n for n in expected if n in given and given[n].shape == expected[n].shape]
    copy_tensors(expected, given, fitting)
    LOG.info("%d of %d tensors of the method from %s.", len(fitting), len(expected),
             weights.PARAMS_FILE)  # fmt: skip


def _name_copies(method: nn.Module) -> dict[str, str]:
    """Return the prefix of each momentum copy, and of the network that it follows."""
    paths = {id(each): f"{name}." for name, each in method.named_modules() if name}
    return {
        f"{name}.module.": paths[id(each.source)]
        for name, each in method.named_modules()
        if id(getattr(each, "source", None)) in paths
    }


def _init_from_library(model: nn.Module, options: ModelOptions) -> Loaded:
    """Start from what the library of the trunk has under the network's name."""
    trunk, library = getattr(model, "trunk", None), options.TRUNK.library()
    assert library is not None
    assert isinstance(trunk, ByName)
    where, skip = f"{trunk.section}.pretrained", options.WEIGHTS_INIT.SKIP_LAYERS
    source = f"{library.library}'s weights of {library.model}"
    expect_trust(f"{source} would be downloaded", where, where, library.model)
    try:
        with weights_only(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            given = _leave_out(trunk.library_weights(trunk.in_chans or RGB), skip)
    except Exception as error:  # without a network there are many
        raise CheckpointError(
            f"{where}: {source} cannot be fetched: {first_line(error)}\n  Where there is no "
            f"network, copy the file here and set {WHERE}.PARAMS_FILE."
        ) from error
    expected = _leave_out(dict(trunk.state_dict()), [*skip, OWN])
    expected, given = _match_mask_tokens(expected, given, "mask_token")
    if problems := mismatches(expected, given):
        raise CheckpointError(f"{where}: {source} do not fit:\n  " + "\n  ".join(problems))
    copy_tensors(expected, given, expected)
    heads = sorted(_part(list_tensors(model), "heads"))
    loaded = Loaded(len(expected), left_out=tuple(heads), source=source)
    _log(loaded)
    return loaded


def expect_whole(loaded: Loaded) -> None:
    """Raise if a part of the trunk was not in the file, and so is as it was initialised."""
    if loaded.skipped:
        raise CheckpointError(
            f"{loaded.source} was asked to leave out {listing(loaded.skipped)}, which the network "
            f"has: its numbers would be random ones. Only what is in the file alone can be left "
            f"out, such as a classifier."
        )


def other_classes(then: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """Say that weights were trained on other classes than this run has; "" if they were not."""
    known = [(list(a), list(b)) for a, b in zip(then, now, strict=False) if a and b]
    if all(one == other for one, other in known):
        return ""
    return (
        f"the checkpoint's classes ({listing(then[0], 8)}) are not those of config.DATA.TRAIN "
        f"({listing(now[0], 8)}), which are used here: what its heads say of classes is void"
    )


# ---- what a file holds: tensors by the model's names, and what the file says of them


def _find_family(
    trunk: Trunk, held: Any, weights: WeightsInitOptions
) -> tuple[dict[str, Tensor], Loaded] | None:
    """Find the trunk of another program's checkpoint; None if it is none, or prefixes are given."""
    key = WeightsInitOptions.STATE_DICT_KEY_NAME
    if weights.says_where() or (isinstance(held, Mapping) and (key in held or _parts(held))):
        return None
    found = recognise(held, weights.NETWORK, weights.PARAMS_FILE)
    if found is None or any(name.startswith("trunk.") for name in found.tensors):
        return None
    named = rename(trunk, _leave_out(found.tensors, weights.SKIP_LAYERS))
    others = find_others(trunk, list(named.tensors))
    not_taken = tuple(sorted((*others, *named.outside)))
    unread = [f"{name} ({each})" for name, each in found.beside.items()]
    if not_taken:
        unread.append(f"of the network {listing(not_taken, 6)}")
    kind = f"a checkpoint of {found.family}"
    kind += f", with names of {named.library}" if named.library else ""
    tensors = {f"trunk.{n}": each for n, each in named.tensors.items() if n not in others}
    return tensors, Loaded(
        network=found.network, not_taken=not_taken, kind=kind, unread=", ".join(unread)
    )


def _find_own(
    trunk: Trunk, held: Any, weights: WeightsInitOptions
) -> tuple[dict[str, Tensor], Loaded]:
    """Read a checkpoint of sslengine or VISSL, or a state dict with the prefixes that are given."""
    content = _reach(held, weights)
    prefixed = any(name.startswith("trunk.") for name in content)
    if isinstance(trunk, ByName) and _is_plain(content) and not (weights.APPEND_PREFIX or prefixed):
        tensors = _strip(content, weights)  # as the library saved a network
        content = {"trunk": {n: t for n, t in tensors.items() if not n.startswith(trunk.left_out)}}
    classes = tuple(tuple(map(str, names)) for names in content.get("classes") or ())
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    named = merge_lora_tensors(_name_tensors(content, weights))
    named = _leave_out(named, weights.SKIP_LAYERS)
    held = {name.removeprefix("trunk."): each for name, each in _part(named, "trunk").items()}
    ours = rename(trunk, held)
    tensors = ours.tensors | {name: held[name] for name in ours.outside}
    tensors = {f"trunk.{name}": each for name, each in tensors.items()} | _others(named)
    return tensors, Loaded(network=network, classes=classes)


def _reach(held: Any, weights: WeightsInitOptions) -> Mapping[str, Any]:
    """Return what STATE_DICT_KEY_NAME leads to; the file, if it holds names and tensors alone."""
    content, keys = held, weights.key_path()
    if weights.STATE_DICT_KEY_NAME == WeightsInitOptions.STATE_DICT_KEY_NAME and _is_plain(held):
        keys = []
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            found = map(str, content) if isinstance(content, Mapping) else [type(content).__name__]
            raise CheckpointError(
                f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} has no {key!r}. It holds: "
                f'{listing(found)}. ("" if the file is the state dict itself.)'
            )
        content = content[key]
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE} holds a {type(content).__name__}: "
            f"expected a state dict, names and their tensors."
        )
    return content


def _is_plain(held: Any) -> bool:
    return isinstance(held, Mapping) and all(isinstance(each, Tensor) for each in held.values())


def _parts(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `{"trunk": ..., "heads": ...}` of a checkpoint; None: the file is no such thing."""
    content = content.get("base_model", content)
    inner = content.get("model")
    content = inner if isinstance(inner, Mapping) and "trunk" in inner else content
    return content if isinstance(content.get("trunk"), Mapping) else None


def _name_tensors(content: Mapping[str, Any], weights: WeightsInitOptions) -> dict[str, Tensor]:
    """Return `trunk.*`, `heads.*` and a custom model's other parts, whichever form the file has."""
    parts = _parts(content)
    if parts is None:
        named = _strip(content.get("base_model", content), weights)
    else:
        named = flatten(parts)
        if "heads" in parts and (weights.REMOVE_PREFIX or weights.APPEND_PREFIX):
            LOG.info("%s: a checkpoint needs no prefixes; they are not applied.", WHERE)
    return {
        f"trunk.{name.removeprefix(_EXTRACTOR)}" if name.startswith(_EXTRACTOR) else name: tensor
        for name, tensor in named.items()
    }


def _strip(content: Mapping[str, Any], weights: WeightsInitOptions) -> dict[str, Tensor]:
    """Return a state dict with REMOVE_PREFIX removed and APPEND_PREFIX put before the names."""
    if not _is_plain(content):
        raise CheckpointError(
            f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} holds no state dict there. "
            f"Found: {listing(map(str, content))}."
        )
    return {
        weights.APPEND_PREFIX + name.removeprefix(weights.REMOVE_PREFIX): tensor
        for name, tensor in content.items()
    }


# ---- what of it is the model's


def _part(named: Mapping[str, T], part: str) -> dict[str, T]:
    return {name: each for name, each in named.items() if name.startswith(f"{part}.")}


def _others(named: Mapping[str, T]) -> dict[str, T]:
    """Return all but the trunk's."""
    return {name: each for name, each in named.items() if not name.startswith("trunk.")}


def _leave_out(named: Mapping[str, T], fragments: Sequence[str]) -> dict[str, T]:
    return {name: each for name, each in named.items() if not _skips(fragments, name)}


def _skips(fragments: Sequence[str], name: str) -> bool:
    return any(fragment in name for fragment in fragments)


def _match_mask_tokens(
    expected: dict[str, Tensor], given: dict[str, Tensor], name: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Give the token that hides patches in training the trunk's shape, or leave it out on both
    sides: it may be missing in a file, or left over, or be that of a decoder."""
    own, theirs = expected.get(name), given.get(name)
    if own is not None and theirs is not None and own.numel() == theirs.numel():
        return expected, {**given, name: theirs.reshape(own.shape)}
    return _leave_out(expected, [name]), _leave_out(given, [name])


def _rename_heads(model: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Use our names in heads whose tensors VISSL calls otherwise (`names_in_vissl`)."""
    table = {
        f"{path}.{theirs}.": f"{path}.{ours}."
        for path, module in model.named_modules()
        for theirs, ours in getattr(module, "names_in_vissl", {}).items()
    }

    def rename_one(name: str) -> str:
        begin = next(filter(name.startswith, table), "")
        return table.get(begin, "") + name.removeprefix(begin)

    return {rename_one(name): tensor for name, tensor in given.items()}


def _choose_heads(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], settings: FeatureEvalOptions
) -> tuple[set[str], list[str]]:
    """Return the names to load, and what is wrong."""
    present = {name for name in expected if name in given}
    problems = []
    if settings.EVAL_TRUNK_AND_HEAD and present != set(expected):
        missing = listing(set(expected) - present)
        problems.append(f"missing, and EVAL_TRUNK_AND_HEAD asks for the heads: {missing}")
    if settings.ASSERT_HEAD_LAYER_SHAPE_INIT:
        return present, problems + shape_problems(expected, given)
    return {name for name in present if given[name].shape == expected[name].shape}, problems


def _describe_misfit(
    weights: WeightsInitOptions, problems: list[str], given: Mapping[str, Tensor], kind: str = ""
) -> str:
    whose = f", {kind}," if kind else ""
    names = f"  The file has: {listing(given, 8) or 'nothing'}."
    lines = "\n  ".join(problems)
    return (
        f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE}{whose} does not fit the model:\n  {lines}\n"
        f"{names}{TO_ADAPT}"
    )


def _log(loaded: Loaded) -> None:
    if loaded.kind:
        LOG.info("%s is %s.", loaded.source, loaded.kind)
    LOG.info(
        "%d trunk and %d head tensors from %s.", loaded.trunk, loaded.heads, loaded.source,
        extra={"on_screen": True},
    )  # fmt: skip
    if loaded.network != MODEL:
        LOG.info("They are the %s's (%s.NETWORK).", loaded.network, WHERE)
    if left := [*loaded.skipped, *loaded.left_out]:
        LOG.info("As initialised, not from the file: %s.", listing(left))
    if loaded.unread:
        LOG.info("In the file and not used: %s.", loaded.unread)
