"""Which network of a checkpoint is used: the student, or the teacher that its method keeps.

The teacher is a slowly moving copy of the student (a momentum encoder is one). A module of a
method that has a teacher names the submodule in `teacher_part`; the method names in
`judged_network` which of the two networks is evaluated and exported. Checkpoints store both under
`networks`. `config.MODEL.WEIGHTS_INIT.NETWORK` overrides `judged_network`: `student`, `teacher`,
or `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sslengine.errors import CheckpointError, ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn

AUTO, STUDENT, TEACHER = CHOICES = ("auto", "student", "teacher")
# The only network of a checkpoint without a teacher.
MODEL = "model"
# For checkpoints without `networks` (VISSL's, and older ones): the teacher's prefix in the loss's
# state, and the network that is evaluated.
_JUDGED_BY_TEACHER = {
    "momentum_teacher.module": TEACHER,
    "key_encoder": STUDENT,
    "teacher": STUDENT,
}


def networks_of(loss: nn.Module) -> dict[str, str]:
    """Return the entry `networks` of a checkpoint; {} without a teacher."""
    parts = ((name, getattr(each, "teacher_part", "")) for name, each in loss.named_modules())
    teacher = next((f"{name}.{part}".lstrip(".") for name, part in parts if part), "")
    judged = getattr(loss, "judged_network", STUDENT)
    return {"teacher": teacher, "judged": judged} if teacher else {}


def check_networks(loss: nn.Module) -> None:
    """Raise ConfigError if the method's `teacher_part` or `judged_network` is wrong."""
    networks = networks_of(loss)
    if not networks:
        return
    name, part = type(loss).__name__, networks["teacher"]
    if not any(each == part for each, _ in loss.named_modules()):
        raise ConfigError(f"{name}.teacher_part: {name} has no submodule {part!r}.")
    if networks["judged"] not in (STUDENT, TEACHER):
        raise ConfigError(
            f"{name}.judged_network: expected {STUDENT} or {TEACHER}, got {networks['judged']!r}."
        )


def choose(content: Mapping[str, Any], wanted: str, file: str) -> tuple[Mapping[str, Any], str]:
    """Return the file's content with the wanted network as its model, and the network's name."""
    _expect_choice(wanted)
    networks = _networks_in(content)
    if not networks:
        if wanted == TEACHER:
            raise CheckpointError(
                f"config.MODEL.WEIGHTS_INIT.NETWORK: {file} contains no teacher: it is not a "
                f"checkpoint of a method that has one. Expected {AUTO} or {STUDENT}."
            )
        return content, MODEL
    name = networks["judged"] if wanted == AUTO else wanted
    return (_with_teacher(content, networks["teacher"], file) if name == TEACHER else content), name


def _expect_choice(wanted: str) -> None:
    if wanted not in CHOICES:
        raise ConfigError(
            f"network: expected {AUTO}, {STUDENT} or {TEACHER}; got {wanted!r}. "
            f"{nearest(wanted, CHOICES)}".rstrip()
        )


def _networks_in(content: Mapping[str, Any]) -> Mapping[str, str]:
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


def _with_teacher(content: Mapping[str, Any], part: str, file: str) -> Mapping[str, Any]:
    """Return the teacher's weights as a model's: remove the prefix `part.` from their names."""
    prefix, parts = f"{part}.", dict[str, dict[str, Any]]()
    for full, tensor in content["loss"].items():
        if full.startswith(prefix):
            child, _, name = full.removeprefix(prefix).partition(".")
            parts.setdefault(child, {})[name] = tensor
    if not parts:
        raise CheckpointError(f"{file}: the loss's state has no tensor named {prefix}*.")
    return {"base_model": {"model": parts}}
