"""Pictures in files that the user names, one at a time: read, and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sslengine.data.decode.decoding import Decoder
from sslengine.data.sources.paths import data_error
from sslengine.data.sources.regular_file import read_file
from sslengine.errors import OutputError, readable


def open_image(path: Path, decoder: Decoder) -> Image.Image:
    try:
        return decoder(read_file(path))
    except Exception as error:  # decoders raise many kinds
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise data_error(path)(
            f"{readable(path)} cannot be read as an image: {readable(text)}"
        ) from error


def save_image(picture: Image.Image, path: Path) -> None:
    try:
        picture.save(path)
    except (OSError, ValueError) as error:  # PIL chooses the format by the suffix
        raise OutputError(f"{path}: the picture cannot be written: {error}") from error


def as_rgb(image: Any) -> Image.Image:
    """Show an image; of an array the first three bands, or the first, scaled to its value range."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    bands = image[..., : 3 if image.shape[2] >= 3 else 1].astype(np.float64)
    least, most = np.nanmin(bands), np.nanmax(bands)
    levels = np.nan_to_num((bands - least) / max(most - least, 1e-12) * 255).astype(np.uint8)
    return Image.fromarray(np.broadcast_to(levels, (*levels.shape[:2], 3)).copy())
