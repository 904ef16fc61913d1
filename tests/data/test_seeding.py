from __future__ import annotations

import random

import numpy as np
import torch

from sslengine.data.seeding import epoch_generator, seed_sample, streams_kept


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), float(torch.rand((), dtype=torch.float64))  # noqa: NPY002


def drawn(seed: int, epoch: int, index: int) -> tuple[float, float, float]:
    seed_sample(seed, (epoch, index))
    return draw()


def test_seed_epoch_and_index_each_matter_to_each_stream() -> None:
    with streams_kept():
        keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (-1, 2, 3)]
        for stream in zip(*(drawn(*key) for key in keys), strict=True):
            assert len(set(stream)) == len(keys)


def test_neighbours_are_not_correlated() -> None:
    """Against the normal bound of a sample correlation: 4.5 / sqrt(n)."""
    count = 3000
    with streams_kept():
        by_index = np.array([drawn(0, 0, index) for index in range(count)])
        by_epoch = np.array([drawn(0, epoch, 0) for epoch in range(count)])
    bound = 4.5 / np.sqrt(count)
    for draws in (by_index, by_epoch):
        assert abs(draws.mean(0) - 0.5).max() < bound * np.sqrt(1 / 12)
        shifted = [np.corrcoef(column[1:], column[:-1])[0, 1] for column in draws.T]
        across = np.corrcoef(draws.T)[np.triu_indices(3, 1)]
        assert max(map(abs, [*shifted, *across])) < bound


def test_order_of_epochs() -> None:
    orders = [
        torch.randperm(50, generator=epoch_generator(seed, epoch)).tolist()
        for seed, epoch in [(0, 0), (0, 1), (1, 0), (0, 0)]
    ]
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_streams_are_put_back_even_after_an_error() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    expected = draw()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    try:
        with streams_kept():
            drawn(7, 7, 7)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert draw() == expected
