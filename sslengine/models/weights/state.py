"""A model's tensors in a checkpoint, and which of a checkpoint's two networks is meant.

    {"model": {"trunk": ..., "heads": ...}, "meta": {"trunk": {}, "heads": []}}

as in VISSL; a custom model has its children's names there. A method with a teacher, a slowly moving
copy of the student such as a momentum encoder, names that submodule in `teacher_part`, and in
`judged_network` which of the two is evaluated and exported; a checkpoint has both under `networks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn

from sslengine.distributed.sharding import copy_into
from sslengine.errors import CheckpointError, ConfigError, listing, nearest
from sslengine.models.model import Model
from sslengine.models.weights import AUTO, CHOICES, MODEL, STUDENT, TEACHER
from sslengine.models.weights.names import write_vissl
from sslengine.registry import component_key

MOST_SHAPES = 8  # that an error lists
STUDENTS = "students."  # the prefix in a loss's state of further students
# Of checkpoints without `networks` (VISSL's, and older ones): the teacher's prefix in the loss's
# state, and the network that is evaluated.
_JUDGED_BY_TEACHER = {
    "momentum_teacher.module": TEACHER,
    "key_encoder": STUDENT,
    "teacher": STUDENT,
}


def model_state(model: nn.Module) -> dict[str, Any]:
    """Return what a checkpoint holds. The tensors are the model's own, not copies."""
    parts: dict[str, dict[str, Tensor]] = {"trunk": {}, "heads": {}}
    for full, tensor in model.state_dict().items():
        part, _, name = full.partition(".")
        parts.setdefault(part, {})[name] = tensor
    return {"model": parts, "meta": {"trunk": {}, "heads": []}}


def vissl_state(model: Model) -> dict[str, Any]:
    """Return what VISSL reads as a checkpoint, and so does `init_from_file`."""
    state = model_state(model)
    state["model"]["trunk"] = write_vissl(model.trunk)
    return {"classy_state_dict": {"base_model": state}}


def load_model_state(model: nn.Module, state: Mapping[str, Any], alone: bool = False) -> None:
    """Load what `model_state` returned; every name must be there with its shape.

    alone: what only training used may be left over: heads, a decoder, the token of hidden patches.
    """
    given, expected = flatten(state.get("model") or {}), list_tensors(model)
    if alone:
        given = {name: each for name, each in given.items() if name in expected
                 or (name.startswith("trunk.") and name != "trunk.mask_token")}  # fmt: skip
    if problems := mismatches(expected, given):
        raise CheckpointError(
            "the checkpoint was made by another model:\n  " + "\n  ".join(problems)
        )
    copy_tensors(expected, given, expected)


def list_tensors(model: nn.Module) -> dict[str, Tensor]:
    return flatten(model_state(model)["model"])


def flatten(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's parts by their full names."""
    return {
        f"{part}.{name}" if name else part: tensor
        for part, tensors in parts.items()
        for name, tensor in (tensors or {}).items()
    }


def copy_tensors(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], names: Iterable[str]
) -> None:
    for name in names:
        copy_into(expected[name], given[name])


def mismatches(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Say what is missing, left over or of another shape, and what may be another's new name."""
    problems = []
    missing, unexpected = set(expected) - set(given), set(given) - set(expected)
    if missing:
        problems.append(f"missing: {listing(missing)}")
    if unexpected:
        problems.append(f"not of this model: {listing(unexpected)}")
    for name in sorted(missing)[:3]:
        alike = [each for each in unexpected if given[each].shape == expected[name].shape]
        problems += [f"perhaps {each} is {name}" for each in get_close_matches(name, alike, n=1)]
    return problems + shape_problems(expected, given)


def shape_problems(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    found = [
        f"{name}: shape {tuple(given[name].shape)} in the file, {tuple(tensor.shape)} in the model"
        for name, tensor in expected.items()
        if name in given and given[name].shape != tensor.shape
    ]
    more = len(found) - MOST_SHAPES
    return found if more <= 0 else [*found[:MOST_SHAPES], f"and {more} others of another shape"]


# ---- student and teacher


def networks_of(loss: nn.Module) -> dict[str, str]:
    """Return the entry `networks` of a checkpoint; {} without a teacher."""
    modules = dict(loss.named_modules())
    parts = ((name, getattr(each, "teacher_part", "")) for name, each in modules.items())
    teacher = next((f"{name}.{part}".lstrip(".") for name, part in parts if part), "")
    if not teacher:
        return {}
    judged = getattr(loss, "judged_network", STUDENT)
    if teacher not in modules or judged not in (STUDENT, TEACHER):
        raise ConfigError(
            f"{type(loss).__name__}: teacher_part must name a submodule and judged_network be "
            f"{STUDENT} or {TEACHER}; got {teacher!r}, {judged!r}."
        )
    return {"teacher": teacher, "judged": judged}


def choose(content: Mapping[str, Any], wanted: str, file: str) -> tuple[Mapping[str, Any], str]:
    """Return the file's content with the wanted network as its model, and the network's name."""
    if wanted not in CHOICES:
        loss = content.get("loss")
        names = map(str, loss if isinstance(loss, Mapping) else ())
        students = sorted({each.split(".")[1] for each in names if each.startswith(STUDENTS)})
        if wanted in students:
            return _take_teacher(content, f"{STUDENTS}{wanted}", file), wanted
        known = [*CHOICES, *students]
        raise ConfigError(
            f"network: expected {', '.join(known[:-1])} or {known[-1]}; got {wanted!r}. "
            f"{nearest(wanted, known)}".rstrip()
        )
    networks = _find_networks(content)
    if not networks:
        if wanted == TEACHER:
            raise CheckpointError(
                f"config.MODEL.WEIGHTS_INIT.NETWORK: {file} contains no teacher: it is not a "
                f"checkpoint of a method that has one. Expected {AUTO} or {STUDENT}."
            )
        return content, MODEL
    name = networks["judged"] if wanted == AUTO else wanted
    return (_take_teacher(content, networks["teacher"], file) if name == TEACHER else content), name


def _find_networks(content: Mapping[str, Any]) -> Mapping[str, str]:
    """Return `networks`; of an older or VISSL's checkpoint, from the names in the loss's state."""
    loss = content.get("loss")
    if not isinstance(loss, Mapping) or "base_model" not in content:
        return {}
    if isinstance(content.get("networks"), Mapping):
        return {str(key): str(value) for key, value in content["networks"].items()}
    for part, judged in _JUDGED_BY_TEACHER.items():
        if any(str(name).startswith(f"{part}.") for name in loss):
            return {"teacher": part, "judged": judged}
    return {}


def _take_teacher(content: Mapping[str, Any], part: str, file: str) -> Mapping[str, Any]:
    """Return the teacher's weights as a model's: remove the prefix `part.` from their names."""
    prefix, parts = f"{part}.", dict[str, dict[str, Any]]()
    for full, tensor in content["loss"].items():
        if full.startswith(prefix):
            child, _, name = full.removeprefix(prefix).partition(".")
            parts.setdefault(child, {})[name] = tensor
    if not parts:
        raise CheckpointError(f"{file}: the loss's state has no tensor named {prefix}*.")
    return {"base_model": {"model": parts}}


def keys_of_network(config: DictConfig, wanted: str) -> dict[str, Any]:
    """Return the keys of a run's config by which one of several students is the model."""
    options = config.LOSS.get(component_key(config.LOSS.name)) or {}
    students = options.get("students") or {}
    if wanted not in students:
        return {}
    network = {f"MODEL.TRUNK.TIMM.{key}": value for key, value in students[wanted].items()}
    return {"MODEL.TRUNK.NAME": "timm", **network, "MODEL.LORA.RANK": 0}
