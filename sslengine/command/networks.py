"""What `--model` names: a trunk of sslengine's or a plugin's, a network of timm's or torchvision's.

    vit_small_patch16_224       the first that has such a name, in this order
    torchvision:resnet50        of this library
    my_package.my_module:Mine   a class of yours

The words before the colon are a library, or a module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from sslengine import catalog
from sslengine.config.signature_in_source import folder_of
from sslengine.errors import ConfigError, UnknownNameError, nearest
from sslengine.registry import TRUNKS, import_dotted

assert catalog  # importing it declares all names

LIBRARIES = ("timm", "torchvision")
# Modules of timm whose networks take images of another side, by an argument.
TRANSFORMERS = ("vision_transformer", "deit", "eva", "beit")
# The side of images that most networks are made for.
SIDE = 224
_DECORATED = re.compile(r"^@register_model(?:\(.*?\))?\n(?:@.*\n)*def (\w+)\(", re.M)


@cache
def names_of(library: str) -> tuple[str, ...]:
    """The networks of a library, from its source: it is not imported."""
    folder = folder_of(library)
    files = sorted((folder / "models").glob("*.py")) if folder else []
    texts = (file.read_text(encoding="utf-8") for file in files)
    return tuple(sorted({name for text in texts for name in _DECORATED.findall(text)}))


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
            sized = self.section if side != SIDE and self.section else ""
            return {
                "MODEL.TRUNK.NAME": self.name,
                **({f"MODEL.TRUNK.{sized}.IMAGE_SIZE": side} if sized else {}),
            }
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
    def patch_side(self) -> int:
        """Of a network whose patches are masked."""
        if self.library == "timm":
            import timm
            import torch

            with torch.device("meta"):
                embed = getattr(timm.create_model(self.name), "patch_embed", None)
            side = getattr(embed, "patch_size", None)
            if side:
                return int(side[0])
        elif not self.library and self.section:
            return int(getattr(TRUNKS.options(self.name)(), "PATCH_SIZE", 0)) or _no_patches(self)  # type: ignore[misc]
        return _no_patches(self)


def _no_patches(network: Network) -> int:
    raise ConfigError(
        f"--model: this method masks patches, and {network.name!r} is no network of timm's that "
        f"embeds patches. Name a vision transformer, such as vit_small_patch16_224."
    )


def find(given: str) -> Network:
    library, _, name = given.partition(":")
    if library in LIBRARIES and name:
        if _has(library, name):
            return Network(library, name)
        raise UnknownNameError(
            f"--model: {library} has no {name!r}. {nearest(name, names_of(library))}".rstrip()
        )
    if ":" in given or given in trunks():
        return Network("", given)
    for library in LIBRARIES:
        if _has(library, given):
            return Network(library, given)
    hint = nearest(given, [*trunks(), *names_of("timm"), *names_of("torchvision")])
    raise UnknownNameError(
        f"--model: neither timm nor torchvision has a network {given!r}, and no trunk has this "
        f"name. {hint}\n  `sslengine list models '*PART*'` lists names with a part; a trunk of "
        f"your own: --plugin MODULE."
    )


def _has(library: str, name: str) -> bool:
    if library == "torchvision":
        return name in names_of(library)
    import timm

    return bool(timm.is_model(name))  # also with the name of weights, and what a plugin adds
