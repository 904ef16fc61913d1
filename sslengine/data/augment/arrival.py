"""The rest of the work when a batch arrives: its uint8 images become what the TRANSFORMS say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sslengine.data.augment.finish import FinishOn, is_uint8
from sslengine.data.batch.collators import Batch


@dataclass(frozen=True)
class Arrival:
    """Images that are not uint8 were finished by the worker, and are not changed."""

    keys: Sequence[str]  # those of the batch that hold images
    finish: FinishOn

    def on_device(self, batch: Mapping[str, Any]) -> Batch:
        """On the stream of the copy. The host does not wait."""
        return {**batch, **{key: self._finished(batch[key]) for key in self.keys if key in batch}}

    def _finished(self, values: Any) -> Any:
        if isinstance(values, list):  # collators nest lists
            return [self._finished(value) for value in values]
        return self.finish(values) if is_uint8(values) else values
