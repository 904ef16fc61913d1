"""The rest of the work when a batch arrives: its uint8 images become what the TRANSFORMS say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from sslengine.data.augment.backends.base import Backend
from sslengine.data.augment.finish import FinishOn, is_uint8
from sslengine.data.batch.collators import Batch


class Opened(NamedTuple):
    """What a collator put under one key, on its way."""

    around: Any  # its lists, with None where an image will be
    moved: Any  # the back-end's


@dataclass(frozen=True)
class Arrival:
    """Images that are not uint8 were finished by the worker, and are not changed."""

    keys: Sequence[str]  # those of the batch that hold images
    backend: Backend
    finish: FinishOn

    def on_host(self, batch: Batch) -> dict[str, Any]:
        """Right after collate. Waits for nothing."""
        return {**batch, **{key: self._open(batch[key]) for key in self.keys if key in batch}}

    def on_device(self, batch: Mapping[str, Any]) -> Batch:
        """On the stream of the copy. The host does not wait."""
        return {**batch, **{key: self._finish(batch[key]) for key in self.keys if key in batch}}

    def _open(self, values: Any) -> Opened:
        parcels: list[Tensor] = []

        def take(leaf: Any) -> Any:
            if is_uint8(leaf):
                parcels.append(leaf)
                return None
            return leaf

        around = _of_leaves(values, take)
        return Opened(around, self.backend.opened(parcels))

    def _finish(self, opened: Opened) -> Any:
        images = iter(self.backend.finished(opened.moved))
        return _of_leaves(
            opened.around, lambda leaf: self.finish(next(images)) if leaf is None else leaf
        )


def _of_leaves(values: Any, change: Callable[[Any], Any]) -> Any:
    """Collators nest lists."""
    if isinstance(values, list):
        return [_of_leaves(value, change) for value in values]
    return change(values)
