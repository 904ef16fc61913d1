import torch
from torch import Tensor

from sslengine.methods.base import Method


class _Plain(Method):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum()


def test_a_method_needs_a_forward_and_nothing_else() -> None:
    method = _Plain()
    assert method(torch.ones(2), torch.ones(2)).item() == 2
    assert method.hooks() == []
    assert method.rank_state() == {}
    method.load_rank_state({})
