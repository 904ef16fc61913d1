"""Every operation, one a file: the registry of them."""

from sslengine.data.augment.operations.autocontrast import AutoContrast
from sslengine.data.augment.operations.blur import Blur
from sslengine.data.augment.operations.brightness import Brightness
from sslengine.data.augment.operations.center_on_black import CenterOnBlack
from sslengine.data.augment.operations.channel_drop import DropChannels
from sslengine.data.augment.operations.contrast import Contrast
from sslengine.data.augment.operations.crop import Crop
from sslengine.data.augment.operations.equalize import Equalize
from sslengine.data.augment.operations.flip import FlipLeftRight
from sslengine.data.augment.operations.grey import Grey
from sslengine.data.augment.operations.hue import Hue
from sslengine.data.augment.operations.invert import Invert
from sslengine.data.augment.operations.noise import Noise
from sslengine.data.augment.operations.posterize import Posterize
from sslengine.data.augment.operations.saturation import Saturation
from sslengine.data.augment.operations.sharpness import Sharpness
from sslengine.data.augment.operations.solarize import Solarize
from sslengine.data.augment.operations.turn import QuarterTurns, Turn

OPERATIONS = (
    Crop, CenterOnBlack, FlipLeftRight, QuarterTurns, Turn,
    Brightness, Contrast, Saturation, Hue, Grey,
    Solarize, Posterize, Invert, AutoContrast, Equalize, Sharpness, Blur,
    Noise, DropChannels,
)  # fmt: skip
