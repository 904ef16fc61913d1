"""Which network of a checkpoint: the one that was trained, or the slow copy that its method keeps.

A part of a method that keeps such a copy (a teacher, a momentum encoder) says in `teacher_part`
under which name; the method says in `judged_network` which of the two is used when its features
are judged or exported. Checkpoints keep both words under `networks`.
`config.MODEL.WEIGHTS_INIT.NETWORK` overrides the second: `student`, `teacher`, or `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sslengine.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import nn

AUTO, STUDENT, TEACHER = CHOICES = ("auto", "student", "teacher")
# Of a checkpoint without a teacher there is one network, and nothing to choose.
MODEL = "model"
# Names in checkpoints that do not say it: VISSL's, and older ones.
_UNTOLD = {"momentum_teacher.module": TEACHER, "key_encoder": STUDENT, "teacher": STUDENT}


def networks_of(loss: nn.Module) -> dict[str, str]:
    """For a checkpoint: where the teacher is and which network is judged; {} without a teacher."""
    parts = ((name, getattr(each, "teacher_part", "")) for name, each in loss.named_modules())
    teacher = next((f"{name}.{part}".lstrip(".") for name, part in parts if part), "")
    judged = getattr(loss, "judged_network", STUDENT)
    return {"teacher": teacher, "judged": judged} if teacher else {}


def check_networks(loss: nn.Module) -> None:
    """A method must have what it says that it has."""
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
    """The content of a file with the wanted network as its model, and that network's name."""
    networks = _networks_in(content)
    if not networks:
        if wanted == TEACHER:
            raise CheckpointError(
                f"config.MODEL.WEIGHTS_INIT.NETWORK: {file} holds no teacher: it is no checkpoint "
                f"of a method that keeps one. Expected {AUTO} or {STUDENT}."
            )
        return content, MODEL
    name = networks["judged"] if wanted == AUTO else wanted
    return (_with_teacher(content, networks["teacher"], file) if name == TEACHER else content), name


def _networks_in(content: Mapping[str, Any]) -> Mapping[str, str]:
    """As the checkpoint says; in an older one, or VISSL's, by the names in the loss's state."""
    loss = content.get("loss")
    if not isinstance(loss, Mapping) or "base_model" not in content:
        return {}
    if isinstance(content.get("networks"), Mapping):
        return {str(key): str(value) for key, value in content["networks"].items()}
    for part, judged in _UNTOLD.items():
        if any(str(name).startswith(f"{part}.") for name in loss):
            return {"teacher": part, "judged": judged}
    return {}


def _with_teacher(content: Mapping[str, Any], part: str, file: str) -> Mapping[str, Any]:
    """Its names are those of the model, behind a prefix."""
    prefix, parts = f"{part}.", dict[str, dict[str, Any]]()
    for full, tensor in content["loss"].items():
        if full.startswith(prefix):
            child, _, name = full.removeprefix(prefix).partition(".")
            parts.setdefault(child, {})[name] = tensor
    if not parts:
        raise CheckpointError(f"{file}: the loss's state holds nothing called {prefix}*.")
    return {"base_model": {"model": parts}}
