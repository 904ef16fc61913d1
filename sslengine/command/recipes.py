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
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sslengine.command.arguments import expect_known
from sslengine.command.data import train_keys
from sslengine.command.networks import StockNetwork, has
from sslengine.config.compose import (
    Composition,
    compose,
    overrides,
    search_folders,
    shipped_configs,
    typed,
)
from sslengine.errors import ConfigError
from sslengine.registry import LOSSES, Requirements, requirements_of

# Folders of configs: of --method, two of small images on a CPU, and of what is added to a method's.
PHOTOS, SMALL, QUICK, FORMS = "photos", "small", "quickstart", "forms"
CPU, CONTINUED = "cpu", {"continued", "lora"}  # from trained weights
# The forms of a method that depends on the number of images of a step.
BATCH = "batch"
_IN_A_LINE = re.compile(r"^# In a line: (.+)$", re.MULTILINE)
_NEEDS = re.compile(
    r"Needs .*?([\d.]+ GiB) of GPU memory for (\d+ images).*?([\d,]+ images) or more"
)
# The small crops of a multi-crop list are a multiple of this, the patches of most transformers.
PATCH = 16
# How much smaller than its cell a patch of a puzzle is, where no key says it.
SHIFT = 21
SIZED = ("size_crops", "crop_size_image", "size")

Views = Sequence[Mapping[str, Any]]


def names_in(folder: str) -> list[str]:
    return sorted(path.stem for path in (shipped_configs() / folder).glob("*.yaml"))


def methods() -> list[str]:
    return names_in(PHOTOS)


def own_method(given: str) -> str:
    """Return the name in a config of a class, or of an installed package's: it has no recipe."""
    file, colon, name = given.partition(".py:")
    is_own = ":" in given or (given in LOSSES.installed() and given not in methods())
    return f"{'.'.join(Path(file).parts)}:{name}" if colon else given * is_own


def about(method: str) -> str:
    """Say what it is, when to take it and what it needs, as the head of its recipe does."""
    if method not in methods():
        owner: Any = LOSSES.installed()[method][0].dist
        return f"A method of the package {owner.name} {owner.version}."
    head = (shipped_configs() / PHOTOS / f"{method}.yaml").read_text("utf-8")
    needs, line = _NEEDS.search(head.replace("\n# ", " ")), _IN_A_LINE.search(head)
    assert needs  # a test reads all of them
    assert line
    return f"{line[1]} From {needs[3]}; {needs[1]} for {needs[2]} a step."


def forms_of(method: str) -> dict[str, str]:
    """Return the forms, and what each adds to the config; empty: a config by itself."""
    return {
        **{form: f"+config/{FORMS}={form}" for form in names_in(FORMS)},
        **{form: f"+config/{FORMS}/{method}={form}" for form in names_in(f"{FORMS}/{method}")},
        **({CPU: ""} if _cpu_config(method) else {}),
    }


def _cpu_config(method: str) -> str:
    """Return the config of small images on a CPU; empty: there is none."""
    found = (folder for folder in (SMALL, QUICK) if method in names_in(folder))
    return next((f"{folder}/{method}" for folder in found), "")


def methods_with_forms() -> list[str]:
    return [f"{method}/{form}" for method in methods() for form in sorted(forms_of(method))]


@dataclass(frozen=True)
class Recipe:
    """A method's YAML, and what it says that options depend on."""

    files: list[str]  # the arguments that select them
    composed: Composition  # with what the command line says of columns, and with --set
    views: list[dict[str, Any]]
    for_cpu: bool = False  # METHOD/cpu

    @classmethod
    def read(cls, given: argparse.Namespace) -> Recipe:
        files = _files(given)
        more = [*overrides(train_keys(given)), *typed(given.values)]
        composed = compose([*files, *more], given.config_dir, trusted=False)
        listed = composed.last_value("config.DATA.TRAIN.TRANSFORMS") or []
        views = [{"name": each} if isinstance(each, str) else each for each in listed]
        return cls(files, composed, views, given.recipe == f"{files[0].rpartition('/')[2]}/{CPU}")

    def said(self, key: str) -> Any:
        """Return the value of a key below `config`; None if nothing sets it."""
        return self.composed.last_value(f"config.{key}")

    def typed(self, key: str) -> Any:
        """Return the value that --set gives the key."""
        return replace(self.composed, layers=[]).last_value(f"config.{key}")

    def plugins(self, given: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*(self.said("PLUGINS") or []), *given]))

    @property
    def name(self) -> str:
        return self.files[0].removeprefix("config=")

    @property
    def made_for_a_machine(self) -> bool:
        forms = {each for each in self.files[1:] if each.startswith(f"+config/{FORMS}=")}
        continued = {f"+config/{FORMS}={each}" for each in CONTINUED}
        return self.for_cpu or self.name.startswith(f"{SMALL}/") or bool(forms - continued)

    @property
    def batch(self) -> int | None:
        """Return the images of a step of all ranks; None: the recipe is for any."""
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
    def needs(self) -> Requirements:
        """Return what the method needs of its run."""
        name = self.said("LOSS.name")
        return requirements_of(LOSSES.get(name) if name in LOSSES else None)

    @property
    def hides(self) -> str:
        """Return how it hides patches, by a `mask`, or as those that are `shown`; empty: none."""
        return self.needs.trunk_input

    @property
    def reads_class_token(self) -> bool:
        """Say whether a head gets it by its name."""
        names = self.said("MODEL.MULTI_INPUT_HEAD_MAPPING"), self.needs.features
        return "CLS" in str(names)

    @property
    def teacher(self) -> StockNetwork | None:
        """Return the network of timm's that is no part of the model, and sees the same views. The
        check of the config reports a name that timm does not know."""
        name = self.said(f"LOSS.{self.said('LOSS.name')}.teacher.timm")
        return StockNetwork("timm", name) if name and has("timm", name) else None

    @property
    def averages_patches(self) -> bool:
        """Say whether features are the mean of the patches, where the network is sslengine's."""
        return self.said("MODEL.TRUNK.VISION_TRANSFORMERS.USE_CLASS_TOKEN") is False

    @property
    def side(self) -> int | None:
        """Return the side of the largest view."""
        return largest_side(self.views)

    @property
    def takes_any_network(self) -> bool:
        return self.trunk == "timm"

    @property
    def network(self) -> StockNetwork:
        """Return the network that a recipe names which takes any."""
        return StockNetwork("timm", self.said("MODEL.TRUNK.TIMM.model"))

    @property
    def makes_shapes(self) -> bool:
        """Say whether its DATA_LIMIT is the number of built-in shapes to make."""
        return self.name.startswith(f"{QUICK}/")


def _files(given: argparse.Namespace) -> list[str]:
    """Return config=photos/dino +config/forms=1gpu +config/forms=continued of the recipe
    dino/1gpu/continued."""
    name = _name_of_recipe(given)
    method, *forms = name.split("/")
    known = forms_of(method)
    files = (folder / f"{name}.yaml" for folder in search_folders(given.config_dir))
    if not forms or any(file.exists() for file in files):
        return [f"config={name}"]
    if method not in methods() and not {*forms} <= known.keys() | {CPU}:
        return [f"config={name}"]
    expect_known(method, methods(), f"--recipe {name}: there is no method")
    if forms == [CPU]:
        return [f"config={_cpu_config(method)}"]
    for form in forms:
        combined = [each for each in known if each != CPU]
        expect_known(form, combined, f"--recipe {name}: {method} has no form to combine")
    if CONTINUED.intersection(forms) and not (given.pretrained or given.weights):
        raise ConfigError(
            f"--recipe {name}: from which weights? Add --pretrained, or --weights FILE."
        )
    return [f"config={PHOTOS}/{method}", *(known[form] for form in forms)]


def _name_of_recipe(given: argparse.Namespace) -> str:
    if given.method and given.recipe:
        raise ConfigError(
            "--method, --recipe: give one of them. `sslengine list methods` and `list recipes`."
        )
    if given.method:
        expect_known(given.method, methods(), "--method: there is no recipe for")
    return str(given.recipe or f"{PHOTOS}/{given.method}")


# ---- views at another side: --size


def largest_side(views: Views) -> int | None:
    """Return the side of the last crop; of an image in patches, that of the image."""
    found = [each[key] for each in views for key in SIZED if each.get(key)]
    if not found:
        return None
    return max(found[-1]) if isinstance(found[-1], list) else int(found[-1])


def size_keys(views: Views, size: int, patch: int | None) -> dict[str, Any]:
    """Return the keys with which the largest view has this side.

    All sides keep their share of it. patch: of the network, which crops are multiples of.
    """
    was = largest_side(views)
    if was is None:
        raise ConfigError(
            "--size: no entry of config.DATA.TRAIN.TRANSFORMS has a size. Set what decides on it "
            "with --set KEY=VALUE; --show prints all keys."
        )
    _expect_patches(views, size, patch)
    return {
        f"DATA.TRAIN.TRANSFORMS.{number}.{key}": value
        for number, entry in enumerate(views)
        for key, value in _scale_entry(entry, size, was, patch or 1).items()
        if value != entry.get(key)
    }


def _scale_entry(entry: Mapping[str, Any], size: int, was: int, patch: int) -> dict[str, Any]:
    def scaled(side: int) -> int:
        return max(1, round(side * size / was))

    found: dict[str, Any] = {}
    if entry.get("size"):
        side = entry["size"]
        found["size"] = [*map(scaled, side)] if isinstance(side, list) else scaled(side)
    if "size_crops" in entry:
        found["size_crops"] = [_crop(side, size, was, patch) for side in entry["size_crops"]]
    if "crop_size_image" in entry:
        found["crop_size_image"] = scaled(entry["crop_size_image"])
        cells = math.isqrt(entry.get("num_patches", 9))
        shown = entry.get("crop_size_patches", 255) // cells - SHIFT
        found["crop_size_patches"] = cells * (scaled(shown) + SHIFT)
    if entry["name"] == "ImgPatchesFromTensor":
        found["patch_jitter"] = scaled(entry.get("patch_jitter", SHIFT))
    return found


def _crop(side: int, size: int, was: int, patch: int) -> int:
    if side == was:
        return size
    if size == was and side % patch == 0:
        return side
    step = patch if PATCH % patch else PATCH
    return max(step, round(side * size / was / step) * step)


def _expect_patches(views: Views, size: int, patch: int | None) -> None:
    """Raise a ConfigError unless patches, and the cells that are hidden, fill a view."""
    unit = math.lcm(patch or 1, *(each["cell_size"] for each in views if "cell_size" in each))
    if size % unit:
        fits = [each for each in (size // unit * unit, (size // unit + 1) * unit) if each]
        raise ConfigError(
            f"--size: views of {size} pixels are not whole patches of {unit}, those of a network "
            f"or of masks. Give --size {' or '.join(map(str, fits))}."
        )
