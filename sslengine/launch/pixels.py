"""Before any process is started: check the channels of the first images against the config."""

from __future__ import annotations

from sslengine.config.resolve import Resolved, settled
from sslengine.data.decode.pixel_format import OF_MODE
from sslengine.task.channels import look_at_data

RGB = 3
# Engines that read TEST even if TEST_MODEL is false.
READ_BOTH = (
    "evaluate", "sweep", "train_svm", "train_svm_low_shot", "nearest_neighbor_test",
    "low_shot_test",
)  # fmt: skip


def settle_pixels(resolved: Resolved, prints: bool = True) -> Resolved:
    """Return the run, with INPUT_CHANNELS set to the channels of its images if they are not RGB.

    Raise the errors that every rank would raise. prints: False in all but one of several processes
    that call this.
    """
    data = resolved.config.DATA
    usual = all(data[split].IMAGE_MODE in OF_MODE for split in ("TRAIN", "TEST"))
    if usual and not prints:
        return resolved
    found = look_at_data(resolved.config, resolved.engine_name in READ_BOTH)
    if found is None:
        return resolved
    for split, pixels in found.formats.items() if prints else ():
        print(f"config.DATA.{split}: {pixels} in the first images", flush=True)  # noqa: T201
    if resolved.config.MODEL.INPUT_CHANNELS != "auto" or (usual and found.channels == RGB):
        return resolved
    return settled(
        resolved, "MODEL.INPUT_CHANNELS", found.channels, "the channels of the images of DATA"
    )
