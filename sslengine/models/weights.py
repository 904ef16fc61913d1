"""A model's weights: into a checkpoint, out of it, and from a file made elsewhere.

In a checkpoint: `{"model": {"trunk": ..., "heads": ...}, "meta": {"trunk": {}, "heads": []}}`,
as in VISSL; a custom model has its children's names there. From a file
(`config.MODEL.WEIGHTS_INIT`): a checkpoint of sslengine or VISSL, a plain state dict with the
prefixes that are given, or a checkpoint of a family in checkpoint_families.py. What was asked for
and could not be loaded is an error, never a shrug.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sslengine.data.sources.paths import how_far
from sslengine.distributed.sharding import copy_into
from sslengine.errors import (
    CheckpointError,
    DoesNotFitError,
    MissingCheckpointError,
    listing,
    nearest,
)
from sslengine.models.channels import RGB, fit_channels
from sslengine.models.checkpoint_families import recognise
from sslengine.models.model import Model
from sslengine.models.networks import MODEL, choose
from sslengine.models.options import FeatureEvalOptions, ModelOptions, WeightsInitOptions
from sslengine.models.positions import fit_positions
from sslengine.models.tensor_names import in_trunks_names, of_others
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.library import ByName
from sslengine.models.vissl_names import to_vissl
from sslengine.models.weight_file import NeedsCodeError, first_line, read_network

T = TypeVar("T")

LOG = logging.getLogger("sslengine")
WHERE = "config.MODEL.WEIGHTS_INIT"

# Of batch norms: each library starts them at 0, and none computes by them.
COUNTERS = "num_batches_tracked"
# Advice for a run's weights, which a teacher's have no keys for.
TO_TRUST = f" Only if it is your own: --trust-pickle ({WHERE}.TRUST_PICKLE=true)."
TO_ADAPT = (
    "\n  Is config.MODEL.TRUNK that of the file? Names can be adapted by REMOVE_PREFIX and "
    "APPEND_PREFIX, and left out by SKIP_LAYERS."
)
MOST_SHAPES = 8  # that an error lists
# VISSL wraps the trunk in another module where features are extracted.
_EXTRACTOR = "trunk.base_model."


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


@dataclass(frozen=True)
class _Given:
    """What is in a file, by the model's names."""

    tensors: dict[str, Tensor]
    network: str
    classes: tuple[tuple[str, ...], ...] = ()
    not_taken: tuple[str, ...] = ()
    kind: str = ""
    # What else the file holds.
    unread: str = ""


def model_state(model: nn.Module) -> dict[str, Any]:
    """For a checkpoint. The tensors are the model's own, not copies."""
    parts: dict[str, dict[str, Tensor]] = {"trunk": {}, "heads": {}}
    for full, tensor in model.state_dict().items():
        part, _, name = full.partition(".")
        parts.setdefault(part, {})[name] = tensor
    return {"model": parts, "meta": {"trunk": {}, "heads": []}}


def vissl_state(model: Model) -> dict[str, Any]:
    """A file that VISSL reads as a checkpoint, and so does `init_from_file`."""
    parts = {"trunk": to_vissl(model.trunk), "heads": model.heads.state_dict()}
    return {
        "classy_state_dict": {
            "base_model": {"model": parts, "meta": {"trunk": {}, "heads": []}},
        }
    }


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """The reverse of `model_state`; every name must be there with its shape."""
    given, expected = _flat(state.get("model") or {}), _tensors(model)
    problems = _mismatches(expected, given)
    if problems:
        raise CheckpointError(
            "the checkpoint was made by another model:\n  " + "\n  ".join(problems)
        )
    _copy(expected, given, expected)


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
    tensors = _tensors(model)
    held, expected = read_file(weights), _without(tensors, weights.SKIP_LAYERS)
    trunk = getattr(model, "trunk", None)
    if not isinstance(trunk, Trunk):
        return _init_whole(expected, held, weights)
    source = _of_family(trunk, held, weights) or _of_vissl(trunk, list(expected), held, weights)
    given = fit_positions(trunk, _without(source.tensors, weights.SKIP_LAYERS))
    given = _in_names_of_heads(model, given)
    given = fit_channels(expected, given, weights)
    expected, given = _mask_token_or_none(expected, given, "trunk.mask_token")
    problems = _mismatches(_part(expected, "trunk"), _part(given, "trunk"))
    chosen = set(_part(expected, "trunk"))
    if not settings.EVAL_MODE_ON or settings.EVAL_TRUNK_AND_HEAD:
        heads, head_problems = _choose_heads(_beside_trunk(expected), given, settings)
        chosen |= heads
        problems += head_problems
    if problems:
        raise DoesNotFitError(_does_not_fit(weights, problems, given, source.kind))
    _copy(expected, given, chosen)
    loaded = Loaded(
        trunk=sum(name.startswith("trunk.") for name in chosen),
        heads=len(_beside_trunk(dict.fromkeys(chosen))),
        left_out=tuple(sorted(set(expected) - chosen)),
        network=source.network,
        classes=source.classes,
        source=weights.PARAMS_FILE,
        not_taken=source.not_taken,
        kind=source.kind,
        skipped=tuple(each for each in _part(tensors, "trunk")
                      if _skipped(each, [*{*weights.SKIP_LAYERS} - {COUNTERS}])),
    )  # fmt: skip
    _log(loaded, sorted(set(given) - chosen), weights.PARAMS_FILE, source.unread)
    return loaded


def expect_whole(loaded: Loaded) -> None:
    """Raise if a part of the trunk was not in the file, and so is as it was initialised."""
    if loaded.skipped:
        raise CheckpointError(
            f"{loaded.source} was asked to leave out {listing(loaded.skipped)}, which the network "
            f"has: its numbers would be random ones. Only what is in the file alone can be left "
            f"out, such as a classifier."
        )


def _init_from_library(model: nn.Module, options: ModelOptions) -> Loaded:
    """What the library of the trunk has under the network's name."""
    trunk, library = trunk_of(model), options.TRUNK.library()
    assert library is not None
    assert isinstance(trunk, ByName)
    where, skipped = f"{trunk.section}.pretrained", options.WEIGHTS_INIT.SKIP_LAYERS
    source = f"{library.library}'s weights of {library.model}"
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            given = _without(trunk.library_weights(trunk.in_chans or RGB), skipped)
    except Exception as error:  # without a network there are many
        raise CheckpointError(
            f"{where}: {source} cannot be fetched: {first_line(error)}\n  Where there is no "
            f"network, copy the file here and set {WHERE}.PARAMS_FILE."
        ) from error
    expected = _without(dict(trunk.state_dict()), skipped)
    expected, given = _mask_token_or_none(expected, given, "mask_token")
    problems = _mismatches(expected, given)
    if problems:
        raise CheckpointError(f"{where}: {source} do not fit:\n  " + "\n  ".join(problems))
    _copy(expected, given, expected)
    heads = sorted(_part(_tensors(model), "heads"))
    loaded = Loaded(len(expected), 0, left_out=tuple(heads), source=source)
    _log(loaded, [], source)
    return loaded


def _mask_token_or_none(
    expected: dict[str, Tensor], given: dict[str, Tensor], name: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The token that hides patches in training may be missing in a file, or left over, or be that
    of a decoder. Files have it as 1 x D and as 1 x 1 x D."""
    own, theirs = expected.get(name), given.get(name)
    if own is not None and theirs is not None and own.numel() == theirs.numel():
        return expected, {**given, name: theirs.reshape(own.shape)}
    return _without(expected, [name]), _without(given, [name])


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


def _classes_in(content: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(str, names)) for names in content.get("classes") or ())


def _init_whole(expected: Mapping[str, Tensor], held: Any, weights: WeightsInitOptions) -> Loaded:
    content = _inside(held, _key_path(held, weights), weights.PARAMS_FILE)
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    parts = _parts(content)
    named = _renamed(content, weights) if parts is None else _flat(parts)
    given = fit_channels(expected, _without(named, weights.SKIP_LAYERS), weights)
    problems = _mismatches(expected, given)
    if problems:
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE} does not fit the model:\n  "
            + "\n  ".join(problems)
            + "\n  SKIP_LAYERS leaves names out, REMOVE_PREFIX and APPEND_PREFIX adapt them."
        )
    _copy(expected, given, expected)
    LOG.info("%d tensors from %s (%s).", len(expected), weights.PARAMS_FILE, network)
    trunk, heads = (len(_part(expected, part)) for part in ("trunk", "heads"))
    return Loaded(trunk, heads, left_out=(), network=network, source=weights.PARAMS_FILE)


def _renamed(content: Mapping[str, Any], weights: WeightsInitOptions) -> dict[str, Tensor]:
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(_no_state_dict(weights, name, value, content))
    return {
        weights.APPEND_PREFIX + name.removeprefix(weights.REMOVE_PREFIX): value
        for name, value in content.items()
    }


def _no_state_dict(
    weights: WeightsInitOptions, name: str, value: object, content: Mapping[str, Any]
) -> str:
    return (
        f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} holds no state dict there: "
        f"{name!r} is a {type(value).__name__}.\n  Found: {listing(map(str, content))}."
    )


def expect_file_of(weights: WeightsInitOptions) -> None:
    """Raise if PARAMS_FILE names nothing that is there."""
    path = weights.PARAMS_FILE
    if "://" in path or path.startswith("hf-hub:"):
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: {path} is an address; download the file and give its path."
        )
    if not Path(path).exists():
        raise MissingCheckpointError(
            f"{WHERE}.PARAMS_FILE: there is no file {path!r}: {how_far(Path(path))}"
        )


def read_file(weights: WeightsInitOptions) -> Any:
    """What PARAMS_FILE holds."""
    expect_file_of(weights)
    try:
        return read_network(Path(weights.PARAMS_FILE), weights.TRUST_PICKLE)
    except NeedsCodeError as error:
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {error} Load it where it was made and save the tensors alone: "
            f"torch.save(model.state_dict(), ...).{TO_TRUST}"
        ) from error
    except CheckpointError as error:
        raise CheckpointError(f"{WHERE}.PARAMS_FILE: {error}") from error


def _key_path(held: Any, weights: WeightsInitOptions) -> list[str]:
    """safetensors hold names and tensors, and nothing that they could lie in."""
    unset = weights.STATE_DICT_KEY_NAME == WeightsInitOptions.STATE_DICT_KEY_NAME
    if weights.PARAMS_FILE.endswith(".safetensors"):
        if weights.key_path() and not unset:
            raise CheckpointError(
                f"{WHERE}.STATE_DICT_KEY_NAME: {weights.PARAMS_FILE} has no keys: safetensors hold "
                f"names and tensors. Leave it out."
            )
        return []
    plain = isinstance(held, Mapping) and all(isinstance(each, Tensor) for each in held.values())
    return [] if plain and unset else weights.key_path()


def _of_family(trunk: Trunk, held: Any, weights: WeightsInitOptions) -> _Given | None:
    """The trunk of another program's checkpoint; None if it is none, or prefixes are given."""
    if weights.says_where() or _is_of_vissl(held):
        return None
    found = recognise(held, weights.NETWORK, weights.PARAMS_FILE)
    if found is None or any(name.startswith("trunk.") for name in found.tensors):
        return None
    named = in_trunks_names(trunk, _without(found.tensors, weights.SKIP_LAYERS))
    others = of_others(trunk, list(named.tensors))
    not_taken = sorted((*others, *named.outside))
    unread = [f"{name} ({each})" for name, each in found.beside.items()]
    if not_taken:
        unread.append(f"of the network {listing(not_taken, 6)}")
    kind = f"a checkpoint of {found.family}"
    kind += f", with names of {named.library}" if named.library else ""
    tensors = {f"trunk.{n}": each for n, each in named.tensors.items() if n not in others}
    return _Given(
        tensors, found.network, not_taken=tuple(not_taken), kind=kind, unread=", ".join(unread)
    )


def _is_of_vissl(held: Any) -> bool:
    key = WeightsInitOptions.STATE_DICT_KEY_NAME
    return isinstance(held, Mapping) and (key in held or _parts(held) is not None)


def _of_vissl(
    trunk: Trunk, expected: Sequence[str], held: Any, weights: WeightsInitOptions
) -> _Given:
    """A checkpoint of sslengine or VISSL, or a state dict with the prefixes that are given."""
    content = _content(trunk, held, weights)
    classes = _classes_in(content)
    content, network = choose(content, weights.NETWORK, weights.PARAMS_FILE)
    parts = {"trunk", "heads", *(name.partition(".")[0] for name in expected)}
    named = _without(_named_tensors(content, weights, parts), weights.SKIP_LAYERS)
    return _Given(_in_our_names(trunk, named), network, classes)


def _content(trunk: Trunk, held: Any, weights: WeightsInitOptions) -> Mapping[str, Any]:
    """What the state dict is in, or the trunk's tensors where a library saved a network."""
    content = _inside(held, _key_path(held, weights), weights.PARAMS_FILE)
    prefixed = any(name.startswith("trunk.") for name in content)
    plain = all(isinstance(each, Tensor) for each in content.values())
    if not (isinstance(trunk, ByName) and plain) or weights.APPEND_PREFIX or prefixed:
        return content
    named = {name.removeprefix(weights.REMOVE_PREFIX): each for name, each in content.items()}
    return {"trunk": {n: each for n, each in named.items() if not n.startswith(trunk.left_out)}}


def _inside(content: Any, keys: Sequence[str], path: str) -> Mapping[str, Any]:
    for key in keys:
        if not isinstance(content, Mapping):
            break
        if key not in content:
            raise CheckpointError(
                f"{WHERE}.STATE_DICT_KEY_NAME: {path} has no {key!r}. "
                f"{nearest(key, map(str, content))}".rstrip()
                + f"\n  It holds: "
                f'{listing(map(str, content))}. ("" if the file is the state dict itself.)'
            )
        content = content[key]
    if not isinstance(content, Mapping):
        place = f" at {'.'.join(keys)}" if keys else ""
        raise CheckpointError(
            f"{WHERE}.PARAMS_FILE: {path} holds a {type(content).__name__}{place}: expected a "
            f"state dict, names and their tensors."
        )
    return content


def _named_tensors(
    content: Mapping[str, Any], weights: WeightsInitOptions, model_parts: Collection[str]
) -> dict[str, Tensor]:
    """`trunk.*`, `heads.*` and a custom model's other parts, whichever form the file has."""
    parts = _parts(content)
    if parts is not None:
        if "heads" in parts and (weights.REMOVE_PREFIX or weights.APPEND_PREFIX):
            LOG.info("%s: a checkpoint needs no prefixes; they are not applied.", WHERE)
        named = _flat(parts)
    else:
        named = _plain(content.get("base_model", content), weights, model_parts)
    return {
        f"trunk.{name.removeprefix(_EXTRACTOR)}" if name.startswith(_EXTRACTOR) else name: tensor
        for name, tensor in named.items()
    }


def _parts(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`{"trunk": ..., "heads": ...}` of a checkpoint; None where the file is no such thing."""
    content = content.get("base_model", content)
    inner = content.get("model")
    content = inner if isinstance(inner, Mapping) and "trunk" in inner else content
    return content if isinstance(content.get("trunk"), Mapping) else None


def _in_our_names(trunk: Trunk, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    held = {name.removeprefix("trunk."): each for name, each in _part(named, "trunk").items()}
    ours = in_trunks_names(trunk, held)
    tensors = ours.tensors | {name: held[name] for name in ours.outside}
    return {f"trunk.{name}": each for name, each in tensors.items()} | _beside_trunk(named)


def _flat(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        f"{part}.{name}" if name else part: tensor
        for part, tensors in parts.items()
        for name, tensor in (tensors or {}).items()
    }


def _plain(
    content: Mapping[str, Any], weights: WeightsInitOptions, model_parts: Collection[str]
) -> dict[str, Tensor]:
    named, strays = {}, []
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(_no_state_dict(weights, name, value, content))
        full = weights.APPEND_PREFIX + name.removeprefix(weights.REMOVE_PREFIX)
        if full.partition(".")[0] in model_parts:
            named[full] = value
        # A file may also hold tensors without the prefix: a loss's centre, a queue.
        elif not weights.REMOVE_PREFIX or name.startswith(weights.REMOVE_PREFIX):
            strays.append(full)
    strays = [name for name in strays if not _skipped(name, weights.SKIP_LAYERS)]
    if strays:
        raise CheckpointError(
            f"{WHERE}.APPEND_PREFIX: names in {weights.PARAMS_FILE} must begin with trunk. or "
            f"heads., after REMOVE_PREFIX {weights.REMOVE_PREFIX!r} and APPEND_PREFIX "
            f"{weights.APPEND_PREFIX!r}; these do not: {listing(strays, 8)}.\n"
            f"  For a file with the trunk alone set APPEND_PREFIX: 'trunk.'"
        )
    return named


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return _flat(model_state(model)["model"])


def _part(named: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if name.startswith(f"{part}.")}


def _beside_trunk(named: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in named.items() if not name.startswith("trunk.")}


def _without(named: Mapping[str, Tensor], fragments: Sequence[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in named.items() if not _skipped(name, fragments)}


def _skipped(name: str, fragments: Sequence[str]) -> bool:
    return any(fragment in name for fragment in fragments)


def _mismatches(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    problems = []
    missing, unexpected = set(expected) - set(given), set(given) - set(expected)
    if missing:
        problems.append(f"missing: {listing(missing)}")
    if unexpected:
        problems.append(f"not of this model: {listing(unexpected)}")
    for name in sorted(missing)[:3]:
        alike = [each for each in unexpected if given[each].shape == expected[name].shape]
        problems += [f"perhaps {each} is {name}" for each in get_close_matches(name, alike, n=1)]
    return problems + _shape_problems(expected, given)


def _shape_problems(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    found = [
        f"{name}: shape {tuple(given[name].shape)} in the file, {tuple(tensor.shape)} in the model"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    more = len(found) - MOST_SHAPES
    return found if more <= 0 else [*found[:MOST_SHAPES], f"and {more} others of another shape"]


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
        return present, problems + _shape_problems(expected, given)
    return {name for name in present if given[name].shape == expected[name].shape}, problems


def _does_not_fit(
    weights: WeightsInitOptions, problems: list[str], given: Mapping[str, Tensor], kind: str
) -> str:
    whose = f", {kind}," if kind else ""
    text = f"{WHERE}.PARAMS_FILE: {weights.PARAMS_FILE}{whose} does not fit the model:\n  "
    text += "\n  ".join(problems)
    if not _part(given, "trunk"):
        text += f"\n  The file has no trunk; its names: {listing(given, 8) or 'none'}."
    return f"{text}{TO_ADAPT}"


def _copy(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], names: Iterable[str]
) -> None:
    for name in names:
        copy_into(expected[name], given[name])


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
