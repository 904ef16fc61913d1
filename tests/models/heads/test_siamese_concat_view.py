from __future__ import annotations

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.models.heads.siamese_concat_view import SiameseConcatView


@pytest.mark.parametrize("trailing", [(), (1, 1)])
def test_rows_of_an_image_stand_side_by_side(trailing: tuple[int, ...]) -> None:
    rows = torch.tensor([[10, 11], [12, 13], [14, 15], [20, 21], [22, 23], [24, 25]])
    joined = SiameseConcatView(num_towers=3)(rows.view(6, 2, *trailing))
    assert joined.tolist() == [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]]


def test_rows_that_make_no_whole_images() -> None:
    with pytest.raises(ConfigError, match="joins 9 rows per image and got 10 rows"):
        SiameseConcatView(9)(torch.zeros(10, 2))
