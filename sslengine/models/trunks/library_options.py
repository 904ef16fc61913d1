"""`config.MODEL.TRUNK.TIMM` and `.TORCHVISION`: networks of these libraries, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sslengine.errors import nearest

# What the engine says itself: there is no classifier, and DATA knows the channels.
_OF_THE_ENGINE = {
    "num_classes": "a trunk has no classifier",
    "in_chans": "set MODEL.INPUT_CHANNELS",
    "pretrained": "set `pretrained` beside `arguments`",
    "weights": "set `pretrained` beside `arguments`",
    "features_only": "features are asked for by name",
}


@dataclass
class LibraryOptions:
    # The network, by the library's name.
    model: str = ""
    # Of the library's function that makes it: {drop_path_rate: 0.1}.
    arguments: dict[str, Any] = field(default_factory=dict)
    # Start from the library's own weights, which are downloaded; without a network:
    # MODEL.WEIGHTS_INIT.PARAMS_FILE.
    pretrained: bool = False

    library: ClassVar[str]

    def known(self) -> Collection[str]:
        raise NotImplementedError

    def check(self) -> Iterator[str]:
        for key in self.arguments.keys() & _OF_THE_ENGINE.keys():
            yield f"arguments.{key}: {_OF_THE_ENGINE[key]}."
        if self.arguments and not self.model:
            yield "model: arguments need a network."

    def check_chosen(self) -> Iterator[str]:
        if self.model and not self.is_known():
            hint = nearest(self.model, self.known())
            yield f"model: {self.library} has no network {self.model!r}. {hint}".rstrip()

    def is_known(self) -> bool:
        return self.model in self.known()


@dataclass
class TimmOptions(LibraryOptions):
    library: ClassVar[str] = "timm"

    def known(self) -> Collection[str]:
        import timm  # it takes a second

        return timm.list_models()  # type: ignore[no-any-return]

    def is_known(self) -> bool:
        """The name may have that of weights behind it: resnet50.a1_in1k."""
        return self.model.partition(".")[0] in self.known()


@dataclass
class TorchvisionOptions(LibraryOptions):
    library: ClassVar[str] = "torchvision"

    def known(self) -> Collection[str]:
        from torchvision import models

        return models.list_models(module=models)  # type: ignore[attr-defined]
