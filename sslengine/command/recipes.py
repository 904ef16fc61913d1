"""The recipes that `sslengine train --method` and `--recipe` name, and what they say.

    --method dino                        configs/photos/dino.yaml, and what fits this machine
    --recipe dino/8gpu                   and configs/forms/8gpu.yaml
    --recipe dino/1gpu/continued         two forms
    --recipe dinov2/batch64              and configs/forms/dinov2/batch64.yaml
    --recipe simclr/cpu                  configs/small/simclr.yaml: small images, a CPU
    --recipe dino/cpu                    configs/quickstart/dino.yaml, where there is none of small/
    --recipe quickstart/simclr           any config

A form that names a machine is trained as written: only --method looks at this machine.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sslengine.command import columns, sides
from sslengine.command.networks import Network, has
from sslengine.config.compose import (
    Composition,
    compose,
    overrides,
    search_folders,
    shipped_configs,
    typed,
)
from sslengine.errors import ConfigError, UnknownNameError, listing, nearest
from sslengine.registry import MODELS

# Folders of configs: of --method, two of small images on a CPU, and of what is added to a method's.
PHOTOS, SMALL, QUICK, FORMS = "photos", "small", "quickstart", "forms"
CPU, CONTINUED = "cpu", "continued"
# The forms of a method that depends on the number of images of a step.
BATCH = "batch"
_IN_A_LINE = re.compile(r"^# In a line: (.+)$", re.MULTILINE)
_NEEDS = re.compile(
    r"Needs .*?([\d.]+ GiB) of GPU memory for (\d+ images).*?([\d,]+ images) or more"
)


def names_in(folder: str) -> list[str]:
    return sorted(path.stem for path in (shipped_configs() / folder).glob("*.yaml"))


def methods() -> list[str]:
    return names_in(PHOTOS)


def about(method: str) -> str:
    """What it is, when to take it and what it needs, as the head of its recipe says."""
    head = (shipped_configs() / PHOTOS / f"{method}.yaml").read_text("utf-8")
    needs, line = _NEEDS.search(head.replace("\n# ", " ")), _IN_A_LINE.search(head)
    assert needs  # a test reads all of them
    assert line
    return f"{line[1]} From {needs[3]}; {needs[1]} for {needs[2]} a step."


def forms_of(method: str) -> dict[str, str]:
    """What each adds to the config; empty: a config by itself."""
    return {
        **{form: f"+config/{FORMS}={form}" for form in names_in(FORMS)},
        **{form: f"+config/{FORMS}/{method}={form}" for form in names_in(f"{FORMS}/{method}")},
        **({CPU: ""} if _for_cpu(method) else {}),
    }


def _for_cpu(method: str) -> str:
    """The config of small images on a CPU; empty: there is none."""
    found = (folder for folder in (SMALL, QUICK) if method in names_in(folder))
    return next((f"{folder}/{method}" for folder in found), "")


def methods_with_forms() -> list[str]:
    return [f"{method}/{form}" for method in methods() for form in sorted(forms_of(method))]


@dataclass(frozen=True)
class Recipe:
    """What the YAML says that options depend on."""

    files: list[str]  # the arguments that select them
    composed: Composition  # with what the command line says of columns, and with --set
    views: list[dict[str, Any]]
    for_cpu: bool = False  # METHOD/cpu

    @classmethod
    def of(cls, given: argparse.Namespace) -> Recipe:
        files = _files(given)
        more = [*overrides(columns.keys(given)), *typed(given.values)]
        composed = compose([*files, *more], given.config_dir, trusted=False)
        listed = composed.last_value("config.DATA.TRAIN.TRANSFORMS") or []
        views = [{"name": each} if isinstance(each, str) else each for each in listed]
        return cls(files, composed, views, given.recipe == f"{files[0].rpartition('/')[2]}/{CPU}")

    def said(self, key: str) -> Any:
        """The value of a key below `config`; None if nothing sets it."""
        return self.composed.last_value(f"config.{key}")

    def typed(self, key: str) -> Any:
        """What --set says."""
        return replace(self.composed, layers=[]).last_value(f"config.{key}")

    def plugins(self, given: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*(self.said("PLUGINS") or []), *given]))

    @property
    def name(self) -> str:
        return self.files[0].removeprefix("config=")

    @property
    def made_for_a_machine(self) -> bool:
        forms = {each for each in self.files[1:] if each.startswith(f"+config/{FORMS}=")}
        continued = f"+config/{FORMS}={CONTINUED}"
        return self.for_cpu or self.name.startswith(f"{SMALL}/") or bool(forms - {continued})

    @property
    def batch(self) -> int | None:
        """Of all ranks; None: the recipe is for any."""
        forms = [each.rpartition("=")[2] for each in self.files[1:]]
        found = [each.removeprefix(BATCH) for each in forms if each.startswith(BATCH)]
        return int(found[-1]) if found else None

    @property
    def trunk(self) -> str:
        return self.said("MODEL.TRUNK.NAME") or ""

    @property
    def many_views(self) -> bool:
        return any("size_crops" in each for each in self.views)

    @property
    def is_masked(self) -> bool:
        return "mask" in (self.said("DATA.TRAIN.INPUT_KEY_NAMES") or [])

    @property
    def leaves_patches_out(self) -> bool:
        if "shown" in (self.said("DATA.TRAIN.INPUT_KEY_NAMES") or []):
            return True
        model = self.said("MODEL.BASE_MODEL_NAME")
        return model in MODELS and getattr(MODELS.get(model), "leaves_patches_out", False)

    @property
    def reads_class_token(self) -> bool:
        """One of the heads gets it by its name."""
        return "CLS" in str(self.said("MODEL.MULTI_INPUT_HEAD_MAPPING") or "")

    @property
    def teacher(self) -> Network | None:
        """A network of timm's that is no part of the model, and sees the same views. Of a name
        that timm does not know the check of the config says it."""
        name = self.said(f"LOSS.{self.said('LOSS.name')}.teacher.timm")
        return Network("timm", name) if name and has("timm", name) else None

    @property
    def averages_patches(self) -> bool:
        """Its features are the mean of the patches, where the network is sslengine's."""
        return self.said("MODEL.TRUNK.VISION_TRANSFORMERS.USE_CLASS_TOKEN") is False

    @property
    def side(self) -> int | None:
        """Of the largest view."""
        return sides.largest(self.views)

    @property
    def takes_any_network(self) -> bool:
        return self.trunk == "timm"

    @property
    def network(self) -> Network:
        """Of a recipe that takes any: the one that it names."""
        return Network("timm", self.said("MODEL.TRUNK.TIMM.model"))

    @property
    def of_shapes(self) -> bool:
        """It says how many of the built-in shapes to make, which is nothing of images."""
        return self.name.startswith(f"{QUICK}/")


def _files(given: argparse.Namespace) -> list[str]:
    """Of `dino/1gpu/continued`: config=photos/dino +config/forms=1gpu +config/forms=continued."""
    name = _name_of_recipe(given)
    method, *forms = name.split("/")
    known = forms_of(method)
    files = (folder / f"{name}.yaml" for folder in search_folders(given.config_dir))
    if not forms or any(file.exists() for file in files):
        return [f"config={name}"]
    if method not in methods():
        if not {*forms} <= known.keys() | {CPU}:
            return [f"config={name}"]
        hint = nearest(method, methods())
        raise UnknownNameError(f"--recipe {name}: there is no method {method!r}. {hint}".rstrip())
    if forms == [CPU] and CPU in known:
        return [f"config={_for_cpu(method)}"]
    if CPU in forms and CPU in known:
        raise ConfigError(
            f"--recipe {name}: {CPU} takes no other form. Give "
            f"{method}/{CPU}, or {method}/{'/'.join(each for each in forms if each != CPU)}."
        )
    for form in forms:
        if not known.get(form):
            raise UnknownNameError(
                f"--recipe {name}: there is no form {form!r} of {method}. {nearest(form, known)}\n"
                f"  There are: {listing([*known])}"
            )
    if CONTINUED in forms and not (given.pretrained or given.weights):
        raise ConfigError(
            f"--recipe {name}: from which weights? Add --pretrained, or --weights FILE."
        )
    return [f"config={PHOTOS}/{method}", *(known[form] for form in forms)]


def _name_of_recipe(given: argparse.Namespace) -> str:
    if given.method and given.recipe:
        raise ConfigError(
            f"--method, --recipe: give one of them. Methods: {listing(methods())}; recipes: "
            f"`sslengine list recipes`."
        )
    if given.method and given.method not in methods():
        raise UnknownNameError(
            f"--method: there is no recipe for {given.method!r}. "
            f"{nearest(given.method, methods())}\n  There is one for: {listing(methods())}"
        )
    return str(given.recipe or f"{PHOTOS}/{given.method}")
