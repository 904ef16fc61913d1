from __future__ import annotations

import pytest
import torch

from sslengine.monitor import host
from sslengine.monitor.host import in_order, on_host


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_cells_come_back_as_they_are(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Read as they are, and as if they were on a device."""
    monkeypatch.setattr(host, "HOST", torch.device(device))
    cells = [torch.tensor([1.0, 2.0]), 3.0, torch.tensor(4), torch.tensor(5.0), torch.tensor([[6]])]
    assert on_host(cells) == [[1.0, 2.0], [3.0], [4.0], [5.0], [6.0]]
    assert on_host([]) == []


def test_numbers_of_all_kinds_in_one_tensor() -> None:
    mixed = in_order([1.0, torch.tensor(2), torch.tensor(3.0)], torch.device("cpu"))
    assert (mixed.dtype, mixed.tolist()) == (torch.float64, [1.0, 2.0, 3.0])
