from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import Normalize, ToTensor

from sslengine.data.augment.arrival import Arrival
from sslengine.data.augment.backends.pil import PilBackend
from sslengine.data.augment.finish import CPU, Finish
from sslengine.data.loading.device_prefetch import on_device
from tests.data.augment.photos import photo

FINISH = Finish(ToTensor(), [Normalize([0.5], [0.25])])


def expected(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - 0.5) / 0.25


def arrived(arrival: Arrival, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    (given,) = on_device([batch], CPU, overlap=False, arrival=arrival)
    return given


def test_bytes_under_the_keys_become_floats_and_nothing_else() -> None:
    arrival = Arrival(("data", "other"), FINISH.on(CPU))
    pixels = PilBackend().tensor(photo(0), [])[None]
    floats, mask = torch.rand(1, 3, 4, 4), torch.ones(2, dtype=torch.uint8)
    batch = {"data": [pixels, [pixels, floats]], "mask": [mask], "label": [torch.zeros(1)]}
    given = arrived(arrival, batch)
    torch.testing.assert_close(given["data"][0], expected(pixels))
    torch.testing.assert_close(given["data"][1][0], expected(pixels))
    assert given["data"][1][1] is floats
    assert given["mask"][0] is mask
    assert given["label"][0] is batch["label"][0]


class NoWaiting(TorchDispatchMode):
    """No value goes from a device to Python."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        )
        return func(*args, **(kwargs or {}))


def test_all_of_it_is_made_on_the_device_without_waiting_for_it() -> None:
    meta = torch.device("meta")
    arrival = Arrival(("data",), FINISH.on(meta))
    batch = {"data": [torch.zeros(2, 3, 4, 4, dtype=torch.uint8)], "data_idx": [torch.arange(2)]}
    with NoWaiting():
        (given,) = on_device([batch], meta, overlap=True, arrival=arrival)
    assert (given["data"][0].device.type, given["data"][0].shape) == ("meta", (2, 3, 4, 4))
    assert given["data_idx"][0] is batch["data_idx"][0]
