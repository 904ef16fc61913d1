"""Numbers, and where the stream ends, are those of the calls that the functions stand for."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sslengine.data.augment import transform as stream

CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "chance": (stream.uniform, lambda: torch.rand(1).item()),
    "uniform": (
        lambda: stream.uniform(0.2, 1.8),
        lambda: float(torch.empty(1).uniform_(0.2, 1.8)),
    ),
    "exp_of_uniform": (
        lambda: stream.exp_of_uniform(math.log(3 / 4), math.log(4 / 3)),
        lambda: torch.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3))).item(),
    ),
    "below 1": (lambda: stream.below(1), lambda: torch.randint(0, 1, (1,)).item()),
    "below 333": (lambda: stream.below(333), lambda: torch.randint(0, 333, (1,)).item()),
    "below 2^40": (lambda: stream.below(2**40), lambda: torch.randint(0, 2**40, (1,)).item()),
}


@pytest.mark.parametrize("name", CASES)
def test_as_with_a_tensor_for_each(name: str) -> None:
    draws = CASES[name]
    torch.manual_seed(3)
    made = [draws[0]() for _ in range(2000)]
    end = torch.random.get_rng_state()
    torch.manual_seed(3)
    assert made == [draws[1]() for _ in range(2000)]
    assert torch.equal(end, torch.random.get_rng_state())


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 1.0])
def test_a_chance_is_compared_as_torch_compares_it(p: float) -> None:
    """With all float32 around it: the next ones, and itself."""
    near = torch.tensor(p).nextafter(torch.tensor(-1.0)), torch.tensor(p).nextafter(torch.tensor(2))
    for drawn in (near[0], torch.tensor(p), near[1]):
        assert (drawn.item() < stream.round_p(p)) == bool(drawn.view(1) < p)
        assert (stream.round_p(p) < drawn.item()) == bool(p < drawn.view(1))


def test_threads_do_not_draw_into_each_others_cells() -> None:
    drawn_into: list[Any] = []

    def first_in_inference_mode() -> None:
        with torch.inference_mode():
            stream.uniform()
        drawn_into.append(stream._cells.real)

    thread = threading.Thread(target=first_in_inference_mode)
    thread.start()
    thread.join()
    before = drawn_into[0].clone()
    stream.uniform()
    assert torch.equal(drawn_into[0], before)
