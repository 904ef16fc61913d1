"""`config.EXTRACT_FEATURES`, where features are written, and `config.FINETUNE`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sslengine.config.sections import section


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Folder of the features; empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1


@section("FINETUNE")
@dataclass
class FinetuneOptions:
    # The name of the row in the table, and the start of the folders' names in `finetune`.
    NAME: str = "finetune"
    # Also train the same network from random weights, for comparison.
    UNTRAINED: bool = True

    def check(self) -> Iterator[str]:
        if not re.fullmatch(r"[\w.%+-]+", self.NAME) or self.NAME.startswith("."):
            yield f"NAME: expected letters, digits, and - _ . % +; got {self.NAME!r}."
