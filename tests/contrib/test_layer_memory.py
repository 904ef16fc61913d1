from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sslengine.contrib.layer_memory import MB, LayerMemory
from sslengine.hooks.default import default_hooks
from tests.config.recipes import resolved
from tests.task.runs import CPU, Watch, same, train, weights


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)
        self.wide = nn.Linear(256, 1024)
        self.inner = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(1024, 512, bias=False))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.inner(self.wide(half)) for half in x.chunk(2)]


def test_what_each_layer_takes() -> None:
    model = Net()
    watch = LayerMemory(model, CPU)
    model(torch.zeros(512, 256))
    lines = {line.name: line for line in watch.lines}
    assert list(lines) == ["wide", "inner.0", "inner.1"]  # in the order of calls; one has none
    # Two calls of 256 rows, 4 bytes a number.
    assert (lines["wide"].calls, lines["wide"].outputs) == (2, 2 * 256 * 1024 * 4)
    assert lines["wide"].parameters == (256 * 1024 + 1024) * 4
    assert lines["inner.0"].outputs == 0  # in place
    assert lines["inner.1"].outputs == 2 * 256 * 512 * 4
    table = watch.finish().splitlines()
    assert table[0].split() == ["layer", "kind", "calls", "parameters", "MB", "outputs", "MB"]
    assert table[1].split() == ["wide", "Linear", "2", "1.004", "2.000"]
    assert table[-1].split()[-3:] == ["6", "3.004", "3.000"]
    model(torch.zeros(2, 256))
    assert lines["wide"].calls == 2  # it looks no more


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_allocated_memory_is_counted() -> None:
    device = torch.device("cuda", 0)
    model = Net().to(device)
    watch = LayerMemory(model, device)
    output = model(torch.zeros(512, 256, device=device))
    text = watch.finish()
    lines = {line.name: line for line in watch.lines}
    assert lines["wide"].grown == 2 * 256 * 1024 * 4
    assert lines["inner.0"].grown == 0
    assert f"{watch.total.grown / MB:.3f} MB grown" in text
    assert watch.total.grown >= sum(each.numel() * 4 for each in output)


def test_by_its_name_a_run_has_the_table_of_one_step_and_trains_as_without(tmp_path: Path) -> None:
    config = resolved(HOOKS__EXTRA=[{"name": "layer_memory", "iteration": 1}]).config
    (hook,) = (each for each in default_hooks(config, tmp_path) if each.name == "WriteLayerMemory")
    plain, watched = Watch(), Watch()
    one, two = train(tmp_path, [plain]), train(tmp_path, [watched, hook])
    assert watched.losses == plain.losses
    assert same(weights(one), weights(two))
    (file,) = (tmp_path / "profile").iterdir()
    assert file.name == "rank0_memory_by_layer.txt"
    (head,) = (line for line in file.read_text().splitlines() if line.startswith("heads.0.clf.0"))
    assert head.split()[1:3] == ["Linear", "1"]  # called once
