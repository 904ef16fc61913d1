"""`config.EXTRACT_FEATURES`: where features go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sslengine.config.sections import section


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1
    MAP_FEATURES_TO_IMG_NAME: bool = False

    def check(self) -> Iterator[str]:
        if self.MAP_FEATURES_TO_IMG_NAME:
            yield "MAP_FEATURES_TO_IMG_NAME: not available yet; `inds` files tell which is which."
