"""`config.EXTRACT_FEATURES`: where features are written."""

from __future__ import annotations

from dataclasses import dataclass

from sslengine.config.sections import section


@section("EXTRACT_FEATURES")
@dataclass
class ExtractFeaturesOptions:
    # Folder of the features; empty: `features` in the run's folder.
    OUTPUT_DIR: str = ""
    # Images per file; -1: one file per rank, 0: one per batch.
    CHUNK_THRESHOLD: int = -1
