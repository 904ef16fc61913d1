"""`config.MODEL.TRUNK.TIMM` and `.TORCHVISION`: the networks of these libraries, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sslengine.errors import ConfigError, nearest

_WEIGHTS = "set the key `pretrained` of this section, or MODEL.WEIGHTS_INIT.PARAMS_FILE"
# Arguments that the engine sets, and what the user should do instead. Those of weights could
# download any address, and would write it where other programs look for weights.
_SET_BY_ENGINE = {
    "num_classes": "a trunk has no classifier",
    "in_chans": "set MODEL.INPUT_CHANNELS",
    "features_only": "features are requested by name",
    "weights": _WEIGHTS,
    "checkpoint_path": _WEIGHTS,
    "cache_dir": "set the environment variable HF_HOME or TORCH_HOME",
}


@dataclass
class LibraryOptions:
    # The network, by the library's name.
    model: str = ""
    # Keyword arguments of the library's function that makes the network: {drop_path_rate: 0.1}.
    arguments: dict[str, Any] = field(default_factory=dict)
    # Start from the library's pretrained weights, which are downloaded. Without internet access set
    # MODEL.WEIGHTS_INIT.PARAMS_FILE instead.
    pretrained: bool = False

    library: ClassVar[str]

    def known(self) -> Collection[str]:
        raise NotImplementedError

    def check(self) -> Iterator[str]:
        for key in self.arguments:
            of_weights = _WEIGHTS if str(key).startswith("pretrained") else ""
            if instead := of_weights or _SET_BY_ENGINE.get(key):
                yield f"arguments.{key}: {instead}."
        if self.arguments and not self.model:
            yield "model: `arguments` is set, but no network is named."

    def check_chosen(self) -> Iterator[str]:
        if self.model and not self.is_known():
            hint = nearest(self.model, self.known())
            yield f"model: {self.library} has no network {self.model!r}. {hint}".rstrip()

    def is_known(self) -> bool:
        return self.model in self.known()

    def expect_valid(self, where: str) -> None:
        """Raise a ConfigError for what `check` finds: not all options are read from a config."""
        for problem in self.check():
            raise ConfigError(f"{where}.{problem}")


@dataclass
class TimmOptions(LibraryOptions):
    # Of a network with `drop_path_rate` among its arguments: all blocks have that rate, as in
    # DINOv2 and DINOv3; false: it grows linearly from 0 to it.
    drop_path_uniform: bool = False

    library: ClassVar[str] = "timm"

    def check(self) -> Iterator[str]:
        yield from super().check()
        if self.drop_path_uniform and not self.arguments.get("drop_path_rate"):
            yield "drop_path_uniform: has an effect only with a drop_path_rate among `arguments`."

    def known(self) -> Collection[str]:
        import timm  # the import takes a second

        return timm.list_models()  # type: ignore[no-any-return]

    def is_known(self) -> bool:
        """The name of pretrained weights may follow that of the network: resnet50.a1_in1k."""
        return self.model.partition(".")[0] in self.known()


@dataclass
class TorchvisionOptions(LibraryOptions):
    library: ClassVar[str] = "torchvision"

    def known(self) -> Collection[str]:
        from torchvision import models

        return models.list_models(module=models)  # type: ignore[attr-defined]
