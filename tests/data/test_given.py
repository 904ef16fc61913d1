"""Beside tests/python, which trains with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from sslengine.data.given import DatasetFeed, LoaderFeed, as_batch, make_feed, rows_of
from sslengine.errors import DataError
from tests.python.toys import Noisy, Points, batches

CPU = torch.device("cpu")


def feed(given: Any, shuffle: bool = True, **more: Any) -> Any:
    return make_feed(given, 4, shuffle=shuffle, seed=0, device=CPU, **more)


def read(one: Any, *window: Any) -> list[Tensor]:
    return [batch["data"][0] for batch in one.batches(*window)]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(*pair) for pair in zip(one, two))


def test_what_a_batch_may_be() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    assert as_batch(x, "d") == {"data": [x], "label": [None]}
    assert as_batch((x,), "d") == {"data": [x], "label": [None]}
    assert as_batch([x, y], "d") == {"data": [x], "label": [y]}
    extra = {"data": [x], "label": [None], "extra": [y], "fields": [("extra",)]}
    assert as_batch({"data": x, "extra": y}, "d") == extra
    for wrong in ({"image": x}, (x, y, y), 3, "text"):
        with pytest.raises(DataError, match=r"d: expected batches \(input, target\)"):
            as_batch(wrong, "d")


def test_rows_of_any_form() -> None:
    assert rows_of({"a": [torch.ones(3, 2)], "b": 1}) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_data_set_is_the_same_for_any_number_of_workers_and_from_any_step(workers: int) -> None:
    one = feed(Noisy(), workers=workers)
    whole = read(feed(Noisy()), 1)
    assert same(read(one, 1), whole)
    assert same(read(one, 1, 2), whole[2:])
    assert not same(read(one, 0), whole)
    one.close()
    assert (one.num_samples, one.steps_per_epoch, one.batch_sizes) == (10, 3, [3, 3, 4])


@pytest.mark.parametrize("workers", [0, 1])
def test_the_next_epoch_may_be_loaded_before_it_is_asked_for(workers: int) -> None:
    one, expected = feed(Noisy(), workers=workers), [read(feed(Noisy()), epoch) for epoch in (0, 1)]
    first = one.batches(0)
    one.then(1, 0, one.steps_per_epoch)
    assert same([batch["data"][0] for batch in first], expected[0])
    if workers:  # all of the first, and what it may hold of the second
        assert one._loader._loader._iterator._send_idx > one.steps_per_epoch
    assert same(read(one, 1), expected[1])
    one.close()


def test_dropping_the_last_and_keeping_the_order() -> None:
    assert feed(Points(), drop_last=True).batch_sizes == [4, 4]
    ordered = feed(Points(), shuffle=False)
    assert torch.equal(torch.cat(read(ordered)), Points().x)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_a_loader_of_random_order_is_found_again(options: dict[str, Any]) -> None:
    def loader() -> Any:
        return DataLoader(Noisy(), batch_size=4, shuffle=True, **options)

    one, two = feed(loader()), feed(loader())
    assert isinstance(one, LoaderFeed)
    whole = read(one, 1)
    assert same(read(two, 1, 2), whole[2:])
    assert not same(read(two, 2), whole)


ORDERS: list[dict[str, Any]] = [
    {"shuffle": True}, {"drop_last": True}, {"shuffle": True, "drop_last": True, "num_workers": 1},
]  # fmt: skip


@pytest.mark.parametrize("options", ORDERS)
def test_the_whole_set_in_order_from_a_loader_that_has_another(options: dict[str, Any]) -> None:
    def pairs(samples: list[Any]) -> Any:
        return default_collate([(2 * x, y) for x, y in samples])

    loader = DataLoader(Points(), batch_size=4, collate_fn=pairs, **options)
    one = feed(loader, shuffle=False, whole=True)
    assert (one.batch_sizes, one.num_samples) == ([4, 4, 2], 10)
    assert torch.equal(torch.cat(read(one)), 2 * Points().x)


def test_a_loader_in_order_is_read_itself() -> None:
    loader = DataLoader(Points(), batch_size=4)
    assert feed(loader, shuffle=False, whole=True)._loader is loader


class _Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((-x, y) for x, y in super().__iter__())


def test_a_loader_with_an_order_of_the_users_keeps_it() -> None:
    points, order = Points(), [3, 1, 2]
    for loader in (
        DataLoader(points, batch_size=2, sampler=order),
        DataLoader(points, batch_sampler=[order[:2], order[2:]]),
    ):
        assert same(
            read(feed(loader, shuffle=False, whole=True)), [points.x[[3, 1]], points.x[[2]]]
        )
    own = feed(_Own(points, batch_size=4, drop_last=True), shuffle=False, whole=True)
    assert torch.equal(torch.cat(read(own)), -points.x[:8])


def test_sizes_of_all_kinds_of_loaders() -> None:
    points = Points()
    assert feed(batches(points)).batch_sizes == [4, 4, 2]
    assert feed(DataLoader(points, batch_size=3)).batch_sizes == [3, 3, 3, 1]
    assert feed(DataLoader(points, batch_size=3, drop_last=True)).batch_sizes == [3, 3, 3]
    own = DataLoader(points, batch_sampler=[[0, 1], [2], [3, 4, 5]])
    one = feed(own)
    assert one.batch_sizes == [2, 1, 3]
    assert (one.num_samples, one.global_batch_sizes) == (6, [2, 1, 3])


def test_a_list_goes_on_where_it_was() -> None:
    one = feed(batches(Points()))
    whole = read(one, 0)
    assert same(read(one, 1, 1, 3), whole[1:])
    assert same(read(one, 1, 0, 1), whole[:1])


def test_a_sampler_is_told_the_epoch() -> None:
    points = Points()
    sampler: Any = DistributedSampler(points, num_replicas=1, rank=0, seed=3)
    one = feed(DataLoader(points, batch_size=4, sampler=sampler))
    first, second = read(one, 0), read(one, 1)
    assert not same(first, second)
    assert same(read(one, 0), first)
    of_batches = BatchSampler(sampler, 4, drop_last=False)
    assert same(read(feed(DataLoader(points, batch_sampler=of_batches)), 1), second)


def test_a_loader_that_ends_early() -> None:
    class Short:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            return iter(batches(Points())[: 4 - self.reads])

    one = feed(Short())
    with pytest.raises(DataError, match="the loader ended after 2 of 3 batches"):
        read(one)


def test_a_data_set_of_inputs_alone() -> None:
    one = feed(TensorDataset(Points().x), shuffle=False)
    assert isinstance(one, DatasetFeed)
    (batch, *_) = one.batches()
    assert batch["label"] == [None]
    assert batch["data_idx"][0].tolist() == [0, 1, 2]


class _Counted(IterableDataset[Tensor]):
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.full((2,), float(each)) + torch.rand(()) for each in range(10))


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_of_an_iterable_dataset_with_a_length(drop_last: bool) -> None:
    loader = DataLoader(_Counted(), batch_size=4, drop_last=drop_last)
    one = make_feed(loader, 4, shuffle=False, seed=0, device=CPU)
    assert one.batch_sizes == [4, 4, 2][: 2 if drop_last else 3]
    whole = read(one, 1)
    assert [len(each) for each in whole] == one.batch_sizes
    assert same(read(one, 1, 1), whole[1:])
