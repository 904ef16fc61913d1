"""A look at the data before any process is started: are images what the config takes them for?"""

from __future__ import annotations

from sslengine.config.resolve import Resolved, settled
from sslengine.data.decode.pixel_format import OF_MODE
from sslengine.task.channels import look_at_data

RGB = 3
# These read the test set, whatever TEST_MODEL says.
READ_BOTH = ("evaluate",)


def settle_pixels(resolved: Resolved, speaks: bool = True) -> Resolved:
    """The run, with the channels of its images where they are no usual ones.

    Raises what would go wrong in every rank. speaks: of several processes that do the same, is
    this the one that tells of it?
    """
    data = resolved.config.DATA
    usual = all(data[split].IMAGE_MODE in OF_MODE for split in ("TRAIN", "TEST"))
    if usual and not speaks:
        return resolved
    found = look_at_data(resolved.config, resolved.engine_name in READ_BOTH)
    if found is None:
        return resolved
    for split, pixels in found.formats.items() if speaks else ():
        print(f"config.DATA.{split}: {pixels} in the first images", flush=True)  # noqa: T201
    if resolved.config.MODEL.INPUT_CHANNELS != "auto" or (usual and found.channels == RGB):
        return resolved
    return settled(
        resolved, "MODEL.INPUT_CHANNELS", found.channels, "the channels of the images of DATA"
    )
