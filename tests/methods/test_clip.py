"""CLIP and SigLIP against their formulas, on ranks, and with a network of transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.command.front import main
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError
from sslengine.methods.base import Step
from sslengine.methods.clip import CLIP
from sslengine.methods.whole import Batch
from tests.command.photos import SMALL, write_photos
from tests.engine.runs import make_task
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool

IMAGES, VIEWS, PIXELS, WORDS, DIM = 8, 2, 5, 4, 3


class Trunk(nn.Module):
    """In place of a ViewTrunk."""

    width = PIXELS

    def forward(self, views: list[Tensor]) -> Tensor:
        return torch.stack(views)


def make(loss: str) -> CLIP:
    """In float64, with a scale and a bias away from where they start."""
    torch.manual_seed(0)
    method = CLIP(Trunk(), vector_width=WORDS, dim=DIM, loss=loss).double()  # type: ignore[arg-type]
    with torch.no_grad():
        method.logit_scale += 0.3
        if loss == "siglip":
            method.logit_bias += 8.5
    return method


def batch(share: slice = slice(None)) -> Batch:
    draw = torch.Generator().manual_seed(1)
    views = [torch.randn(IMAGES, PIXELS, generator=draw, dtype=torch.float64) for _ in range(VIEWS)]
    texts = torch.randn(IMAGES, WORDS, generator=draw, dtype=torch.float64)
    return Batch({"input": [each[share] for each in views], "caption": texts[share],
                  "fields": ("caption",)})  # fmt: skip


def written_out(method: CLIP, loss: str) -> Tensor:
    """The formula, image by image and text by text."""
    given = batch()
    texts = [method.text_projection(each) for each in given["caption"]]
    losses = []
    for view in given.views:
        images = [method.image_projection(each) for each in view]
        cosines = torch.stack([
            torch.stack([(x @ y) / (x.norm() * y.norm()) for y in texts]) for x in images
        ])  # fmt: skip
        logits = method.logit_scale.exp() * cosines
        total = logits.new_zeros(())
        for i in range(IMAGES):
            if loss == "siglip":
                for j in range(IMAGES):
                    z = 1 if i == j else -1
                    logit = logits[i, j] + method.logit_bias.squeeze()
                    total = total + torch.log1p(torch.exp(-z * logit))
            else:
                of_image = logits[i].exp().sum().log() - logits[i, i]
                of_text = logits[:, i].exp().sum().log() - logits[i, i]
                total = total + (of_image + of_text) / 2
        losses.append(total / IMAGES)
    return sum(losses[1:], losses[0]) / VIEWS


def gradients(method: CLIP, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {name: each.grad.clone() for name, each in method.named_parameters()
            if each.grad is not None}  # fmt: skip


@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_value_and_gradient_are_those_of_the_formula(loss: str) -> None:
    method, other = make(loss), make(loss)
    value, expected = method(batch(), Step.alone()), written_out(other, loss)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    found, wanted = gradients(method, value), gradients(other, expected)
    assert found.keys() == wanted.keys() == dict(method.named_parameters()).keys()
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def _step(loss: str) -> tuple[float, dict[str, Tensor]]:
    method, images = make(loss), IMAGES // world_size()
    value = method(batch(slice(rank() * images, (rank() + 1) * images)), Step.alone())
    return value.item(), gradients(method, value)


def assert_ranks_are_one_process(pool: RankPool, loss: str) -> None:
    method = make(loss)
    expected = written_out(method, loss)
    wanted = gradients(method, expected)
    steps = pool.run(_step, loss)
    mean = sum(value for value, _ in steps) / len(steps)
    assert mean == pytest.approx(expected.item(), rel=1e-12)
    for name, gradient in wanted.items():
        found = sum(each[name] for _, each in steps) / len(steps)
        torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_two_ranks_are_one_process(two_ranks: RankPool, loss: str) -> None:
    assert_ranks_are_one_process(two_ranks, loss)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_four_ranks_are_one_process(four_ranks: RankPool, loss: str) -> None:
    assert_ranks_are_one_process(four_ranks, loss)


def test_it_starts_as_published_and_the_scale_of_clip_is_100_at_most() -> None:
    clip, siglip = (CLIP(Trunk(), vector_width=WORDS, loss=each) for each in ("clip", "siglip"))  # type: ignore[arg-type]
    assert clip.logit_scale.exp().item() == pytest.approx(1 / 0.07)
    assert (siglip.logit_scale.item(), siglip.logit_bias.item()) == (
        pytest.approx(math.log(10)),
        -10,
    )
    for method in (clip, siglip):
        nn.init.constant_(method.logit_scale, 5.0)
        method.after_update(Step.alone())
    assert clip.logit_scale.exp().item() == pytest.approx(100)
    assert siglip.logit_scale.item() == 5.0


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


def text_network(folder: Path) -> str:
    """A BERT of two layers and its words, as transformers keeps them."""
    transformers = pytest.importorskip("transformers", reason="has the text encoder")
    words = "[PAD] [UNK] [CLS] [SEP] striped checked disc ring red green blue grey on dark bright ground"
    (folder / "vocab.txt").write_text("\n".join(words.split()))
    settings = transformers.BertConfig(
        vocab_size=len(words.split()), hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(settings).save_pretrained(folder)
    kept = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    return str(folder)


def with_text(encoder: str, **more: Any) -> dict[str, Any]:
    return {
        "DATA__TRAIN__DATA_SOURCES": ["shapes"], "DATA__TRAIN__LABEL_SOURCES": [],
        "DATA__TRAIN__LABEL_TYPE": "zero", "DATA__TRAIN__DEFAULT_GRAY_IMG_SIZE": 16,
        "DATA__TRAIN__FIELDS": ["caption"], "DATA__TRAIN__COLLATE_FUNCTION": "multicrop_collator",
        "MODEL__HEAD__PARAMS": [],
        "LOSS": {"name": "clip_loss", "text_encoder": encoder, "dim": 6, "tokens": 12, **more},
    }  # fmt: skip


@pytest.mark.parametrize("loss", ["clip", "siglip"])
def test_text_is_read_by_a_network_that_is_trained_and_resumes(loss: str, tmp_path: Path) -> None:
    encoder = text_network(tmp_path)
    task = assert_goes_on_bit_by_bit(tmp_path, **with_text(encoder, loss=loss))
    start = CLIP(Trunk(), text_encoder=encoder, tokens=12, dim=6)
    trained = dict(task.loss.named_parameters())
    for name, each in start.text_encoder.named_parameters():
        moved = not torch.equal(trained[f"text_encoder.{name}"].data, each.data)
        # [UNK], words that no caption has and places behind the last token stay.
        assert moved or "embeddings" in name, name


def test_each_text_is_itself_whatever_stands_beside_it(tmp_path: Path) -> None:
    method = CLIP(Trunk(), text_encoder=text_network(tmp_path), tokens=12)
    one, other = "red striped disc on dark ground", "grey ring"
    together = method.text_encoder([one, other])
    torch.testing.assert_close(method.text_encoder([other])[0], together[1])
    assert not torch.allclose(together[0], together[1])
    fresh = CLIP(Trunk(), text_encoder=str(tmp_path), pretrained=False).text_encoder
    assert not torch.allclose(fresh([one]), method.text_encoder([one]))


def test_photos_of_a_table_with_captions(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/data_sources.md has it; the trunk is judged on images without captions."""
    encoder = text_network(tmp_path)
    rows = [f"{path},a {path.parent.name} disc" for path in sorted(photos.rglob("*.png"))]
    (tmp_path / "photos.csv").write_text("\n".join(["path,caption", *rows]))
    arguments = ["--method=clip", "--model=resnet10t", *SMALL, f"--set=LOSS.text_encoder={encoder}"]
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "photos.csv"), *arguments, f"--out={run}"]) == 0
    assert (run / "checkpoints" / "checkpoint.torch").exists()
    judged = ["judge", str(run), f"--train={photos}", f"--val={photos}", "--workers=0"]
    assert main([*judged, "--set=EVALUATE.LABEL_FREE=[rankme]", "--set=EVALUATE.PROTOCOLS=[]"]) == 0
    capsys.readouterr()
    assert main(["train", str(photos), *arguments, f"--out={tmp_path / 'other'}"]) == 1
    assert "config.DATA.TRAIN.FIELDS" in capsys.readouterr().err


@pytest.mark.parametrize("encoder", ["", "/no/such/folder"])
def test_without_a_text_encoder_or_a_width(encoder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.LOSS\.clip_loss\.text_encoder"):
        make_task(tmp_path, [], **with_text(encoder))
