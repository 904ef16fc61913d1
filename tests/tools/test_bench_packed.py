"""All ways compute the same features and gradients; which is fastest is for the tool to say."""

from __future__ import annotations

import pytest
import timm
import torch

from tools.perf_measurement import bench_packed


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("way", ["packed", "nested"])
def test_packed_tokens_give_the_same(way: str) -> None:
    torch.manual_seed(0)
    trunk = timm.create_model("test_vit", num_classes=0, dynamic_img_size=True).double()
    trunk.global_pool = "token"
    crops = [torch.randn(2, 3, 64, 64).double(), torch.randn(4, 3, 32, 32).double()]
    found = []
    for each in ("apart", way):
        trunk.zero_grad()
        features = torch.cat(bench_packed.WAYS[each](trunk, crops))
        features.square().sum().backward()
        found.append([features, *(p.grad for p in trunk.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_packed, "CROPS", ((1, 64), (2, 32)))
    bench_packed.main(["--model", "test_vit", "--images", "2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["apart", "packed"]
    assert lines[1].split()[-1] == "1.00"
