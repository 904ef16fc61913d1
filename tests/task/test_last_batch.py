import torch

from sslengine.task.last_batch import LastBatch


def test_a_step_begins_with_its_sample() -> None:
    last = LastBatch()
    last.begin({"input": 1, "target": 2, "data_idx": torch.tensor([3])})
    assert (last.sample["input"], last.target, last.indices.tolist()) == (1, 2, [3])
    last.begin({"input": 1, "target": 2})
    assert last.indices is None
