"""MoCo against equation 1 and Algorithm 1 of the paper, at 1, 2 and 4 ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.methods.moco import MoCoLoss, MoCoOptions, shuffled
from sslengine.methods.step import Step
from tests.engine.runs import make_task, train
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool

RECIPE: dict[str, Any] = {
    "LOSS__name": "moco_loss", "LOSS__moco_loss__embedding_dim": 8,
    "LOSS__moco_loss__queue_size": 32, "LOSS__moco_loss__momentum": 0.9,
    "DATA__TRAIN__COLLATE_FUNCTION": "moco_collator",
}  # fmt: skip


def equation_1(q: Tensor, k: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """-log of the positive's share, query by query; q, k and the queue have unit length."""
    losses = []
    for query, positive in zip(q, k, strict=True):
        logits = [query @ positive / temperature]
        logits += [query @ negative / temperature for negative in queue]
        losses.append(torch.logsumexp(torch.stack(logits), 0) - logits[0])
    return torch.stack(losses).mean()


def unit(rows: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in rows])


def _method(
    dim: int, queue: int, temperature: float = 0.2, momentum: float = 0.999, **facts: Any
) -> MoCoLoss:
    torch.manual_seed(0)
    options = MoCoOptions(dim, queue, momentum, temperature)
    return MoCoLoss(options, RunFacts(views_per_image=2, **facts)).double()


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ---- the loss


def _value(method: MoCoLoss, queries: Tensor, keys: Tensor) -> Tensor:
    """With a key encoder that gives these keys."""
    method.key_encoder.attach(nn.Identity())
    return method(queries, {"data_momentum": keys}, Step.alone())


@given(
    images=st.integers(1, 6),
    dim=st.integers(1, 9),
    queue=st.integers(1, 12),
    temperature=st.sampled_from([1e-3, 0.07, 0.2, 1.0, 50.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(
    images: int, dim: int, queue: int, temperature: float, seed: int
) -> None:
    drawn, keys = _drawn(images, dim, seed=seed), unit(_drawn(images, dim, seed=seed + 1))
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    method = _method(dim, queue, temperature)
    loss = _value(method, ours, keys)
    expected = equation_1(unit(theirs), keys, method.queue, temperature)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    rounding = 1e-13 / temperature
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=rounding)


def test_single_precision_stays_finite_at_a_tiny_temperature() -> None:
    method = _method(8, 64, temperature=5e-4).float()
    queries = _drawn(16, 8, seed=1).float().requires_grad_()
    loss = _value(method, queries, unit(_drawn(16, 8)).float())
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(queries.grad).all()


def test_an_independent_implementation_agrees() -> None:
    lightly = pytest.importorskip("lightly.loss")
    theirs = lightly.NTXentLoss(temperature=0.2, memory_bank_size=(12, 5))
    method = _method(5, 12)
    theirs.memory_bank.bank = method.queue.clone()
    theirs.memory_bank.bank_ptr = torch.zeros(1, dtype=torch.long)
    queries, keys = _drawn(4, 5), unit(_drawn(4, 5, seed=1))
    expected = theirs(queries.clone().requires_grad_(), keys)
    torch.testing.assert_close(_value(method, queries, keys), expected)
    method.after_backward(Step.alone())
    torch.testing.assert_close(method.queue, theirs.memory_bank.bank)


# ---- the queue


def test_the_oldest_keys_leave_first() -> None:
    method = _method(2, 6)
    begun = method.queue.clone()
    batches = [unit(_drawn(2, 2, seed=seed)) for seed in range(4)]
    for count, keys in enumerate(batches, start=1):
        _value(method, keys, keys)
        batches[count - 1] = F.normalize(keys, dim=1)  # once more, as the method does
        method.after_backward(Step.alone())
        newest = batches[max(0, count - 3) : count]
        history = torch.cat([begun, *batches[:count]])[-6:]
        assert {tuple(row) for row in method.queue.tolist()} == {
            tuple(row) for row in history.tolist()
        }
        assert all(row in method.queue.tolist() for keys in newest for row in keys.tolist())


def test_the_queue_begins_with_unit_vectors_and_is_state() -> None:
    method = _method(4, 6)
    torch.testing.assert_close(method.queue.norm(dim=1), torch.ones(6).double())
    assert set(method.state_dict()) == {"queue", "queue_ptr"}
    assert (MoCoOptions().queue_size, MoCoOptions().embedding_dim) == (65536, 128)
    assert (MoCoOptions().momentum, MoCoOptions().temperature) == (0.999, 0.2)


# ---- a whole step, by Algorithm 1

PIXELS, WIDTH, QUEUE, IMAGES = 5, 4, 16, 8


def _linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(PIXELS, WIDTH).double()


def _views(step: int) -> Tensor:
    return _drawn(2, IMAGES, PIXELS, seed=100 + step)


def algorithm_1(steps: int, momentum: float, lr: float) -> tuple[list[float], Tensor, Tensor]:
    """In one process, written from the paper: losses, the last queue (oldest key first), f_k."""
    f_q, f_k = _linear(), _linear()
    queue = list(_method(WIDTH, QUEUE).queue)
    losses = []
    for step in range(steps):
        x_q, x_k = _views(step)
        k = unit(f_k(x_k)).detach()
        loss = equation_1(unit(f_q(x_q)), k, torch.stack(queue), 0.2)
        f_q.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for slow, fast in zip(f_k.parameters(), f_q.parameters(), strict=True):
                fast -= lr * fast.grad
                slow.copy_(momentum * slow + (1 - momentum) * fast)
        queue = queue[IMAGES:] + list(k)
    return losses, torch.stack(queue), f_k.weight.detach()


def _trained(steps: int, lr: float, **facts: Any) -> tuple[list[float], MoCoLoss]:
    """The same by the method, each rank with its share, under DDP where there are ranks."""
    model = _linear()
    wrapped = DistributedDataParallel(model) if world_size() > 1 else model
    method = _method(WIDTH, QUEUE, momentum=0.9, **facts)
    method.key_encoder.attach(model)
    sgd = torch.optim.SGD(model.parameters(), lr)
    losses = []
    for step in range(steps):
        x_q, x_k = _views(step).chunk(world_size(), dim=1)[rank()]
        now = Step.alone(iteration=step)
        loss = method(wrapped(x_q), {"input": x_q, "data_momentum": x_k}, now)
        sgd.zero_grad()
        loss.backward()
        method.after_backward(now)
        sgd.step()
        method.key_encoder.after_update(now)
        losses.append(loss.item())
    return losses, method


def _assert_as_algorithm_1(losses: list[float], method: Any, steps: int) -> None:
    expected, queue, slow = algorithm_1(steps, momentum=0.9, lr=0.5)
    assert losses == pytest.approx(expected, rel=1e-9)
    place = int(method["queue_ptr"])
    assert place == steps * IMAGES % QUEUE
    torch.testing.assert_close(method["queue"].roll(-place, dims=0), queue)
    torch.testing.assert_close(method["key_encoder.module.weight"], slow)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_steps_are_those_of_algorithm_1(steps: int) -> None:
    losses, method = _trained(steps, lr=0.5)
    _assert_as_algorithm_1(losses, method.state_dict(), steps)


def _steps_on_this_rank(synchronised: bool) -> tuple[list[float], dict[str, Tensor]]:
    losses, method = _trained(7, lr=0.5, sync_batch_norm=synchronised)
    return losses, method.state_dict()


@pytest.mark.parametrize("synchronised", [False, True])
@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(
    pool: RankPool, synchronised: bool
) -> None:
    """Losses, and by way of SGD gradients; the queue in the order of the ranks."""
    results = pool.run(_steps_on_this_rank, synchronised)
    means = [
        sum(each) / pool.world_size for each in zip(*(losses for losses, _ in results), strict=True)
    ]
    for _, state in results:
        _assert_as_algorithm_1(means, state, steps=7)
        for name, value in state.items():
            assert torch.equal(value, results[0][1][name]), name


def _own_gradient() -> Tensor:
    """This rank's own gradient in a first step, over the number of ranks."""
    model, method = _linear(), _method(WIDTH, QUEUE)
    method.key_encoder.attach(model)
    x_q, x_k = _views(0).chunk(world_size(), dim=1)[rank()]
    method(model(x_q), {"data_momentum": x_k}, Step.alone()).backward()
    assert all(each.grad is None for each in method.key_encoder.parameters())
    return model.weight.grad / world_size()


def test_gradients_of_ranks_sum_to_that_of_the_whole_batch(four_ranks: RankPool) -> None:
    summed = torch.stack(four_ranks.run(_own_gradient)).sum(dim=0)
    torch.testing.assert_close(summed, _own_gradient(), rtol=1e-9, atol=1e-12)


# ---- ShuffleBN


def _normed() -> nn.Module:
    return nn.Sequential(_linear(), nn.BatchNorm1d(WIDTH).double())


def _keys_on_this_rank(step: int, synchronised: bool) -> tuple[Tensor, int, Tensor, bool]:
    method = _method(WIDTH, QUEUE, sync_batch_norm=synchronised)
    method.key_encoder.attach(_normed())
    images = _views(0)[1].chunk(world_size())[rank()]
    before = torch.get_rng_state()
    keys, start = method._keys({"data_momentum": images}, Step.alone(iteration=step))
    untouched = torch.equal(before, torch.get_rng_state())
    return keys, start, method.key_encoder.module[1].running_mean, untouched


def _keys_of_shares(images: Tensor, order: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Encode image order[i] on the rank whose share holds place i; keys by image, statistics
    of the first rank."""
    keys = torch.empty(len(images), WIDTH, dtype=torch.float64)
    means = []
    for places in order.chunk(ranks):
        encoder = _normed()
        keys[places] = unit(encoder(images[places])).detach()
        means.append(encoder[1].running_mean)
    return keys, means[0]


@pytest.mark.parametrize("step", [0, 5])
def test_keys_are_made_among_other_ranks_images(two_ranks: RankPool, step: int) -> None:
    images = _views(0)[1]
    order = shuffled(IMAGES, seed=0, step=step)
    expected, mean = _keys_of_shares(images, order, ranks=2)
    unshuffled, _ = _keys_of_shares(images, torch.arange(IMAGES), ranks=2)
    assert (expected - unshuffled).abs().max() > 0.01
    results = two_ranks.run(_keys_on_this_rank, step, synchronised=False)
    for number, (keys, start, statistics, untouched) in enumerate(results):
        torch.testing.assert_close(keys, expected)
        torch.testing.assert_close(statistics, mean)
        assert start == number * IMAGES // 2
        assert untouched
    assert torch.equal(results[0][0], results[1][0])


def test_with_synchronised_batch_norms_nothing_is_shuffled(two_ranks: RankPool) -> None:
    expected, _ = _keys_of_shares(_views(0)[1], torch.arange(IMAGES), ranks=2)
    for keys, *_ in two_ranks.run(_keys_on_this_rank, 0, synchronised=True):
        torch.testing.assert_close(keys, expected)


def test_each_step_has_an_order_of_its_own() -> None:
    orders = {tuple(shuffled(32, seed, step).tolist()) for seed in (0, 1) for step in range(50)}
    assert len(orders) == 100
    assert all(sorted(order) == list(range(32)) for order in orders)
    assert torch.equal(shuffled(32, 3, 4), shuffled(32, 3, 4))


# ---- whole runs


class Moments(Hook):
    """The queue and the key encoder at the events of a step; engine hooks come after MoCo's."""

    def __init__(self) -> None:
        self.seen: list[SimpleNamespace] = []

    def _note(self, task: Any, event: str) -> None:
        slow = torch.cat([each.flatten() for each in task.loss.key_encoder.parameters()])
        keys = None if task.loss._new_keys is None else task.loss._new_keys.clone()
        self.seen.append(
            SimpleNamespace(event=event, queue=task.loss.queue.clone(), slow=slow, keys=keys)
        )

    def on_forward(self, task: Any) -> None:
        self._note(task, "forward")

    def on_loss_and_meter(self, task: Any) -> None:
        self._note(task, "loss")

    def on_backward(self, task: Any) -> None:
        self._note(task, "backward")

    def on_update(self, task: Any) -> None:
        self._note(task, "update")


def test_the_order_of_a_step(tmp_path: Path) -> None:
    """Keys enter the queue after the loss has read it; then the key encoder moves, once."""
    moments = Moments()
    train(tmp_path, [moments], **RECIPE, OPTIMIZER__num_epochs=1)
    steps = [moments.seen[start : start + 4] for start in range(0, 16, 4)]
    begun = steps[0][0].queue
    for number, (forward, loss, backward, update) in enumerate(steps):
        assert [forward.event, loss.event, backward.event, update.event] == [
            "forward", "loss", "backward", "update"
        ]  # fmt: skip
        assert torch.equal(forward.queue, begun)
        assert torch.equal(loss.queue, begun)
        expected = begun.clone()
        expected[4 * number : 4 * number + 4] = loss.keys
        assert torch.equal(backward.queue, expected)
        assert torch.equal(forward.slow, backward.slow)
        assert not torch.equal(backward.slow, update.slow)
        torch.testing.assert_close(loss.keys, F.normalize(loss.keys, dim=1))
        begun = update.queue


def test_keys_are_the_key_encoders_view_of_the_second_images(tmp_path: Path) -> None:
    task = make_task(tmp_path, [], **RECIPE)
    task.on_start()
    task.start_phase()
    images = _drawn(4, 3, 8, 8).float()
    with torch.no_grad():
        (expected,) = task.loss.key_encoder.module(images)
    keys, _ = task.loss._keys({"data_momentum": images}, task.method_step)
    torch.testing.assert_close(keys, F.normalize(expected, dim=1))
    task.close()


def _goes_on(folder: Path) -> None:
    changes = {"DISTRIBUTED__NUM_PROC_PER_NODE": 2, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    assert_goes_on_bit_by_bit(folder / str(rank()), **RECIPE, **changes)


def test_a_run_on_ranks_goes_on_bit_by_bit(two_ranks: RankPool, tmp_path: Path) -> None:
    """The order of ShuffleBN too."""
    two_ranks.run(_goes_on, tmp_path)


# ---- what a user can get wrong


def test_a_queue_that_batches_do_not_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"queue_size: .* got 30, .* 4 images .* Nearest: 32\."):
        make_task(tmp_path, [], **{**RECIPE, "LOSS__moco_loss__queue_size": 30})
    facts = RunFacts(world_size=2, batch_size_per_replica=4, views_per_image=2)
    MoCoOptions(queue_size=24).infer(facts)
    with pytest.raises(ConfigError, match="got 20, and a batch has 8 images"):
        MoCoOptions(queue_size=20).infer(facts)


def test_a_short_last_batch_is_refused_before_the_first_step(tmp_path: Path) -> None:
    changes = {**RECIPE, "DATA__TRAIN__DATA_LIMIT": 15}
    with pytest.raises(ConfigError, match="a batch has 3 images .*TRAIN.DROP_LAST: True"):
        train(tmp_path, [], **changes, DATA__TRAIN__DROP_LAST=False)
    assert train(tmp_path, [], **changes).iteration == 6
