"""What `--model` names: a trunk of sslengine's or a plugin's, a network of timm's or torchvision's.

    vit_small_patch16_224       the first that has such a name, in this order
    torchvision:resnet50        of this library
    my_package.my_module:Mine   a class of yours

The words before the colon are a library, or a module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from sslengine import catalog
from sslengine.errors import ConfigError, UnknownNameError, nearest
from sslengine.registry import TRUNKS, import_dotted

assert catalog  # importing it declares all names

LIBRARIES = ("timm", "torchvision")
# Before timm's names of weights in a folder, and on a hub.
PLACES = ("local-dir", "hf-hub", "hf_hub")
# Modules of timm whose networks take images of another side, by an argument.
TRANSFORMERS = ("vision_transformer", "deit", "eva", "beit")
# The trunk of sslengine's that can leave patches out, and one of timm's.
SHOWING, A_VIT = "vision_transformer", "vit_small_patch16_224"
# The side of images that most networks are made for.
SIDE = 224
_DECORATED = re.compile(r"^@register_model(?:\(.*?\))?\n(?:@.*\n)*def (\w+)\(", re.M)


@cache
def names_of(library: str) -> tuple[str, ...]:
    """The networks of a library, from its source: it is not imported."""
    return tuple(sorted({name for text in _sources(library) for name in _DECORATED.findall(text)}))


def _sources(library: str) -> Iterator[str]:
    spec = PathFinder.find_spec(library)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(Path(next(iter(folders)), "models").glob("*.py")) if folders else []
    return (file.read_text(encoding="utf-8") for file in files)


def trunks() -> list[str]:
    """Without those of the libraries, which are named by their networks."""
    return [name for name in TRUNKS.names() if name not in LIBRARIES]


@dataclass(frozen=True)
class Network:
    library: str  # empty: a trunk of the registry
    name: str

    def __str__(self) -> str:
        return self.name

    def keys(self, side: int, many_views: bool, pretrained: bool) -> dict[str, Any]:
        """Of MODEL.TRUNK, for images of this side."""
        if not self.library:
            if pretrained:
                raise ConfigError(
                    f"--pretrained: {self.name} is a trunk of sslengine's or of a plugin's, which "
                    f"has no weights that were trained elsewhere. Give a file with --weights."
                )
            sized = f"MODEL.TRUNK.{self.section}.IMAGE_SIZE" if self.section else ""
            return {"MODEL.TRUNK.NAME": self.name, **({sized: side} if sized else {})}
        section = f"MODEL.TRUNK.{self.library.upper()}"
        arguments = dict(self._arguments(side, many_views))
        return {
            "MODEL.TRUNK.NAME": self.library,
            f"{section}.model": self.name,
            **({f"{section}.arguments": arguments} if arguments else {}),
            **({f"{section}.pretrained": True} if pretrained else {}),
        }

    def _arguments(self, side: int, many_views: bool) -> Iterator[tuple[str, Any]]:
        if self.library == "torchvision":
            if self.name.startswith("vit_") and side != SIDE:
                yield "image_size", side
            return
        import timm

        if timm.model_entrypoint(self.name).__module__.rpartition(".")[2] not in TRANSFORMERS:
            return
        native = timm.get_pretrained_cfg(self.name)
        if native is None or native.input_size[-1] != side:
            yield "img_size", side
        if many_views:
            yield "dynamic_img_size", True

    @property
    def section(self) -> str:
        """The section of a trunk's sizes, if it is made for images of one side."""
        made_by = TRUNKS.options(self.name)
        sections = vars(import_dotted("sslengine.models.options:TrunkOptions")()).items()
        found = (key for key, each in sections if type(each) is made_by)
        return next((key for key in found if hasattr(made_by, "IMAGE_SIZE")), "")

    @property
    def patch_side(self) -> int | None:
        """Of a network that embeds patches."""
        if self.library == "timm":
            embed: Any = getattr(self._on_meta(), "patch_embed", None)
            return int(embed.feat_ratio()) if hasattr(embed, "feat_ratio") else None
        if not self.library and self.section:
            made_by: Any = TRUNKS.options(self.name)
            return getattr(made_by(), "PATCH_SIZE", None)
        return None

    @property
    def can_leave_patches_out(self) -> bool:
        """Of a plugin's trunk the launch says it."""
        if self.library == "timm":
            return bool(import_dotted("sslengine.models.trunks.shown:can_show")(self._on_meta()))
        shipped = self.name in TRUNKS and TRUNKS.owner(self.name).startswith("sslengine.")
        return not self.library and (self.name == SHOWING or not shipped)

    @property
    def pools_class_token(self) -> bool:
        """By default, of timm's ViT: another pool needs no other layers then."""
        made_by = import_dotted("timm.models.vision_transformer:VisionTransformer")
        if self.library != "timm" or not isinstance(self._on_meta(), made_by):
            return False
        return bool(self._on_meta().global_pool == "token")

    def _on_meta(self) -> Any:
        return _timm_on_meta(self.name)

    @property
    def has_class_token(self) -> bool:
        """Only of timm's networks it is known before the launch."""
        return self.library != "timm" or getattr(self._on_meta(), "cls_token", None) is not None

    def expect_for(self, method: str, masks: bool, leaves_out: bool, reads_class: bool) -> None:
        """Raise a ConfigError if the method hides patches, leaves them out, or reads the class
        token, and this network cannot."""
        lacks = "cannot leave patches out" if leaves_out and not self.can_leave_patches_out else ""
        if masks and not self.patch_side:
            lacks = "is no network of timm's that embeds patches"
        what = "trains on a part of an image's patches"
        if not lacks and reads_class and not self.has_class_token:
            what, lacks = "trains on the class token", "has none"
        if lacks:
            raise ConfigError(
                f"--model: {method} {what}, and {self.name!r} {lacks}. Name {SHOWING}, or a vision "
                f"transformer of timm's, such as {A_VIT}."
            )


@cache
def _timm_on_meta(name: str) -> Any:
    """Without memory for its weights."""
    import timm
    import torch

    with torch.device("meta"):
        return timm.create_model(name)


def find(given: str) -> Network:
    library, _, name = given.partition(":")
    if library in LIBRARIES and name:
        expect_known(library, name, "--model")
        return Network(library, name)
    if library in PLACES and name:
        raise ConfigError(
            f"--model: {given} names weights, and --model takes a network. Give both, the network "
            f"as `architecture` in the config.json of the weights has it: --model NAME "
            f"--weights FILE.safetensors."
        )
    if ":" in given or given in trunks():
        return Network("", given)
    for library in LIBRARIES:
        if has(library, given):
            return Network(library, given)
    hint = nearest(given, [*trunks(), *names_of("timm"), *names_of("torchvision")])
    raise UnknownNameError(
        f"--model: neither timm nor torchvision has a network {given!r}, and no trunk has this "
        f"name. {hint}\n  `sslengine list models '*PART*'` lists names with a part; a trunk of "
        f"your own: --plugin MODULE."
    )


def expect_known(library: str, name: str, option: str) -> None:
    if not has(library, name):
        raise UnknownNameError(
            f"{option}: {library} has no {name!r}. {nearest(name, names_of(library))}".rstrip()
        )


def has(library: str, name: str) -> bool:
    arch = name.partition(".")[0] if library == "timm" else name  # without the name of weights
    if arch in names_of(library) or library == "torchvision":
        return arch in names_of(library)
    if "timm" not in sys.modules and not any(f"'{arch}'" in text for text in _sources(library)):
        return False
    import timm

    return bool(timm.is_model(name))  # an earlier name, or what a plugin adds
