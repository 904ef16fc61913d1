"""Pictures in files that the user names, one at a time: read, and written."""

from __future__ import annotations

from pathlib import Path

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
