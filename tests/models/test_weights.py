from __future__ import annotations

import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from sslengine.distributed.shard_files import REST
from sslengine.errors import CheckpointError
from sslengine.models.build import build_model
from sslengine.models.model import Model
from sslengine.models.options import (
    FeatureEvalOptions,
    HeadOptions,
    ModelOptions,
    ResNetOptions,
    TrunkOptions,
    WeightsInitOptions,
)
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.load import init_from_file
from sslengine.models.weights.names import read_vissl, write_vissl
from sslengine.models.weights.read import NeedsCodeError, list_files, read_network, read_weights
from sslengine.models.weights.state import load_model_state, model_state, vissl_state
from tests.models.trunks import checks

HEAD = [["mlp", {"dims": [512, 4]}]]


def options(
    params: list[Any] | None = None, settings: dict[str, Any] | None = None, **weights: Any
) -> ModelOptions:
    return ModelOptions(
        TRUNK=TrunkOptions(RESNETS=ResNetOptions(DEPTH=18)),
        HEAD=HeadOptions(PARAMS=HEAD if params is None else params),
        FEATURE_EVAL_SETTINGS=FeatureEvalOptions(**(settings or {})),
        WEIGHTS_INIT=WeightsInitOptions(**weights),
    )


def model(seed: int, params: list[Any] | None = None) -> Model:
    torch.manual_seed(seed)
    return build_model(options(params))


@pytest.fixture(scope="module")
def trained() -> Model:
    """One whose buffers are not at their first values."""
    made = model(1)
    with torch.no_grad():
        made([torch.randn(2, 3, 32, 32)])
    return made


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor], *but: str) -> bool:
    names = [name for name in theirs if not any(each in name for each in but)]
    return all(torch.equal(ours[name], theirs[name]) for name in names)


SaveAs = Callable[[Any], str]


@pytest.fixture
def saved(tmp_path: Path) -> SaveAs:
    def save(content: Any) -> str:
        path = tmp_path / f"weights{len(list(tmp_path.iterdir()))}.torch"
        torch.save(content, path)
        return str(path)

    return save


# --- checkpoints of sslengine ---


def test_another_model_is_told_whole(trained: Model) -> None:
    state = model_state(trained)
    trunk = dict(state["model"]["trunk"])
    trunk["strange"] = trunk.pop("bn1.bias")
    trunk["bn1.weight"] = torch.zeros(3)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        load_model_state(trained, {"model": {"trunk": trunk, "heads": {}}})
    text = str(error.value)
    assert "missing: heads.0.clf.0.bias, heads.0.clf.0.weight, trunk.bn1.bias" in text
    assert "not of this model: trunk.strange" in text
    assert "trunk.bn1.weight: shape (3,) in the file, (64,) in the model" in text
    assert equal(trained.state_dict(), before)


# --- files from elsewhere, in all their forms ---


def vissl_trunk(trained: Model, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in trained.trunk.state_dict().items()}


def vissl_file(trained: Model, prefix: str = "_feature_blocks.") -> dict[str, Any]:
    parts = {"trunk": vissl_trunk(trained, prefix), "heads": trained.heads.state_dict()}
    base_model = {"model": parts, "meta": {"trunk": {}, "heads": []}}
    return {"phase_idx": 3, "classy_state_dict": {"base_model": base_model, "losses": [0.5]}}


@pytest.mark.parametrize("prefix", ["", "_feature_blocks.", "base_model._feature_blocks."])
def test_a_checkpoint(trained: Model, saved: SaveAs, prefix: str) -> None:
    other = model(2)
    # VISSL's own YAML has prefixes here that VISSL does not apply.
    asked = options(PARAMS_FILE=saved(vissl_file(trained, prefix)), APPEND_PREFIX="trunk.")
    loaded = init_from_file(other, asked)
    assert equal(other.state_dict(), trained.state_dict(), "num_batches_tracked")
    assert (loaded.trunk, loaded.heads, loaded.left_out) == (100, 2, ())
    assert int(other.trunk.bn1.num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("key", "written", "remove", "append"),
    [
        ("", "", "", "trunk."),
        ("model_state_dict", "", "", "trunk._feature_blocks."),
        (["loss", "teacher"], "", "", "trunk.base_model._feature_blocks."),
        ("", "trunk.base_model._feature_blocks.", "", ""),
        ("", "module.encoder.", "module.encoder.", "trunk."),
        (
            ["loss"],
            "momentum_teacher.module.trunk._feature_blocks.",
            "momentum_teacher.module.",
            "",
        ),
    ],
)
def test_a_plain_state_dict(
    trained: Model, saved: SaveAs, key: Any, written: str, remove: str, append: str
) -> None:
    content: dict[str, Any] = vissl_trunk(trained, written)
    for each in reversed([key] if isinstance(key, str) else key):
        content = {each: content} if each else content
    asked = options(
        PARAMS_FILE=saved(content), STATE_DICT_KEY_NAME=key, REMOVE_PREFIX=remove,
        APPEND_PREFIX=append,
    )  # fmt: skip
    other = model(2)
    assert init_from_file(other, asked).trunk == 100
    assert equal(other.trunk.state_dict(), trained.trunk.state_dict(), "num_batches_tracked")


def test_beside_a_prefixed_teacher_may_be_other_things(trained: Model, saved: SaveAs) -> None:
    content = {"center": torch.zeros(3), **vissl_trunk(trained, "teacher.trunk.")}
    asked = options(
        PARAMS_FILE=saved({"loss": content}), STATE_DICT_KEY_NAME="loss", REMOVE_PREFIX="teacher."
    )
    assert init_from_file(model(2), asked).trunk == 100


def test_a_torchvision_file(saved: SaveAs) -> None:
    theirs = torchvision.models.resnet18()
    path = saved(theirs.state_dict())
    plain = {"PARAMS_FILE": path, "STATE_DICT_KEY_NAME": "", "APPEND_PREFIX": "trunk."}
    with pytest.raises(CheckpointError, match=r"not of this model: trunk\.fc\.bias, trunk\.fc\."):
        init_from_file(model(2), options(**plain))
    other = model(2)
    init_from_file(other, options(**plain, SKIP_LAYERS=["num_batches_tracked", "fc."]))
    assert torch.equal(other.trunk.layer4[1].conv2.weight, theirs.layer4[1].conv2.weight)


# --- heads ---


def test_heads_may_differ_and_the_log_says_so(
    trained: Model, saved: SaveAs, caplog: pytest.LogCaptureFixture
) -> None:
    params = [["mlp", {"dims": [512, 4], "use_bias": False}], ["mlp", {"dims": [4, 4]}]]
    other = model(2, params)
    with caplog.at_level(logging.INFO, "sslengine"):
        loaded = init_from_file(other, options(params, PARAMS_FILE=saved(vissl_file(trained))))
    assert (loaded.heads, loaded.left_out) == (1, ("heads.1.clf.0.bias", "heads.1.clf.0.weight"))
    assert "As initialised, not from the file: heads.1.clf.0.bias" in caplog.text
    assert "In the file and not used: heads.0.clf.0.bias" in caplog.text


def test_heads_of_another_shape(trained: Model, saved: SaveAs) -> None:
    params = [["mlp", {"dims": [512, 9]}]]
    path = saved(vissl_file(trained))
    with pytest.raises(CheckpointError, match=r"heads\.0\.clf\.0\.weight: shape \(4, 512\) in the"):
        init_from_file(model(2, params), options(params, PARAMS_FILE=path))
    lenient = options(params, {"ASSERT_HEAD_LAYER_SHAPE_INIT": False}, PARAMS_FILE=path)
    assert init_from_file(model(2, params), lenient).heads == 0


def test_evaluation_takes_the_trunk_alone_unless_asked(trained: Model, saved: SaveAs) -> None:
    path = saved(vissl_file(trained))
    judged = options(settings={"EVAL_MODE_ON": True}, PARAMS_FILE=path)
    assert init_from_file(model(2), judged).heads == 0
    whole = {"EVAL_MODE_ON": True, "EVAL_TRUNK_AND_HEAD": True}
    assert init_from_file(model(2), options(settings=whole, PARAMS_FILE=path)).heads == 2
    params = [["mlp", {"dims": [512, 4]}], ["mlp", {"dims": [4, 4]}]]
    with pytest.raises(CheckpointError, match=r"asks for the heads: heads\.1\.clf\.0\.bias"):
        init_from_file(model(2, params), options(params, whole, PARAMS_FILE=path))


# --- what goes wrong ---


def test_a_trunk_that_does_not_fit(trained: Model, saved: SaveAs) -> None:
    content = vissl_file(trained)
    trunk = content["classy_state_dict"]["base_model"]["model"]["trunk"]
    del trunk["_feature_blocks.conv1.weight"]
    trunk["_feature_blocks.bn1.weight"] = torch.zeros(3)
    other = model(2)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(CheckpointError) as error:
        init_from_file(other, options(PARAMS_FILE=saved(content)))
    text = str(error.value)
    assert text.startswith("config.MODEL.WEIGHTS_INIT.PARAMS_FILE: ")
    assert "missing: trunk.conv1.weight" in text
    assert "trunk.bn1.weight: shape (3,) in the file, (64,) in the model" in text
    assert equal(other.state_dict(), before)


class NeedsCode:
    pass


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        ({"clasy_state_dict": {}}, "classy_state_dict", "no 'classy_state_dict'. It holds: clasy"),
        ({"loss": {"center": 1}}, ["loss", "teacher"], "has no 'teacher'."),
        ({"phase_idx": 3}, "", "holds no state dict there. Found: phase_idx"),
        ([1, 2], "", "holds a list: expected a state dict"),
        ({"conv1.weight": torch.zeros(1)}, "", "The file has: conv1.weight."),
        ({"model": NeedsCode()}, "model", "which needs code to load, and a file is not trusted"),
    ],
)
def test_files_that_hold_something_else(
    saved: SaveAs, content: Any, key: Any, message: str
) -> None:
    asked = options(PARAMS_FILE=saved(content), STATE_DICT_KEY_NAME=key)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        init_from_file(model(2), asked)


def test_safetensors_need_no_key(tmp_path: Path, trained: Model) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({name: value.clone() for name, value in trained.state_dict().items()}, path)
    other = model(2)
    init_from_file(other, options(PARAMS_FILE=str(path)))
    want, got = trained.state_dict(), other.state_dict()
    assert all(torch.equal(got[name], want[name]) for name in want if "num_batches" not in name)
    with pytest.raises(CheckpointError, match=r"STATE_DICT_KEY_NAME: .* has no 'model'"):
        init_from_file(other, options(PARAMS_FILE=str(path), STATE_DICT_KEY_NAME="model"))


# --- VISSL's names ---

SMALL_TRUNKS: list[dict[str, Any]] = [
    {"NAME": "resnet", "RESNETS": {"DEPTH": 18, "WIDTH_MULTIPLIER": 0.25}},
    {"NAME": "regnet",
     "REGNET": {"depth": 3, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}},
    {"NAME": "xcit", "XCIT": {"IMAGE_SIZE": 32, "HIDDEN_DIM": 32, "NUM_LAYERS": 2, "NUM_HEADS": 4}},
    {"NAME": "swin_transformer",
     "SWIN_TRANSFORMER": {"IMAGE_SIZE": 32, "EMBED_DIM": 8, "DEPTHS": [2, 2, 2],
                          "NUM_HEADS": [2, 2, 2], "WINDOW_SIZE": 4}},
    {"NAME": "vision_transformer",
     "VISION_TRANSFORMERS": {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2,
                             "MLP_DIM": 8}},
    {"NAME": "beit",
     "BEIT": {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2,
              "USE_REL_POS_BIAS": True}},
    {"NAME": "mobilenetv3_tv"},
    {"NAME": "mobilenetv3_timm"},
]  # fmt: skip


@pytest.mark.parametrize("trunk", SMALL_TRUNKS, ids=lambda trunk: trunk["NAME"])
def test_there_and_back_in_the_names_of_vissl(trunk: dict[str, Any], saved: SaveAs) -> None:
    def build(seed: int, **weights: Any) -> tuple[Model, ModelOptions]:
        tree = {"TRUNK": trunk, "WEIGHTS_INIT": weights}
        made = checks.options(tree)
        torch.manual_seed(seed)
        return build_model(made), made

    source, _ = build(1)
    file = vissl_state(source)
    names = file["classy_state_dict"]["base_model"]["model"]["trunk"]
    plain = {"STATE_DICT_KEY_NAME": "", "PARAMS_FILE": saved(names)}
    for weights in (
        {"PARAMS_FILE": saved(file)},
        {**plain, "APPEND_PREFIX": "trunk."},
        {**plain, "APPEND_PREFIX": "trunk.base_model."},
    ):
        other, asked = build(2, **weights)
        assert not equal(other.trunk.state_dict(), source.trunk.state_dict())
        init_from_file(other, asked)
        assert equal(other.trunk.state_dict(), source.trunk.state_dict(), "num_batches_tracked")
    # What was not found is told in the names of this model.
    names.pop(next(name for name in names if name.endswith("weight")))
    incomplete = {**plain, "PARAMS_FILE": saved(names), "APPEND_PREFIX": "trunk."}
    with pytest.raises(CheckpointError, match=r"missing: trunk\."):
        init_from_file(*build(2, **incomplete))


def test_the_authors_file_of_a_beit(saved: SaveAs) -> None:
    """Pre-trained: one bias of relative positions, no embedding, and the head of pre-training."""
    small = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2, "QKV_BIAS": True}
    places = {"USE_ABS_POS_EMB": False, "USE_SHARED_REL_POS_BIAS": True}
    trained = {"USE_MEAN_POOLING": False, "INIT_VALUES": 0.1}

    def build(**weights: Any) -> tuple[Model, ModelOptions]:
        trunk = {"NAME": "beit", "BEIT": {**small, **places, **trained}}
        tree = {"TRUNK": trunk, "WEIGHTS_INIT": weights}
        made = checks.options(tree)
        return build_model(made), made

    source, _ = build()
    names = {
        **source.trunk.state_dict(),
        "rel_pos_bias.relative_position_index": torch.zeros(5, 5, dtype=torch.long),
        "mask_token": torch.zeros(1, 1, 24),
        "lm_head.weight": torch.zeros(8, 24),
    }
    weights = {
        "PARAMS_FILE": saved({"model": names}),
        "STATE_DICT_KEY_NAME": "model",
        "APPEND_PREFIX": "trunk.base_model.",
    }
    with pytest.raises(CheckpointError, match=r"not of this model: trunk\.lm_head\.weight\n"):
        init_from_file(*build(**weights))
    model, asked = build(**weights, SKIP_LAYERS=["mask_token", "lm_head"])
    init_from_file(model, asked)
    assert equal(model.trunk.state_dict(), source.trunk.state_dict())


# --- a model of one's own ---


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 3)
        self.token = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(()))


def test_a_model_of_ones_own_is_stored_by_its_parts() -> None:
    one, two = Whole(), Whole()
    state = model_state(one)
    assert state["model"].keys() == {"trunk", "heads", "body", "token", "count"}
    assert state["model"]["body"].keys() == {"weight", "bias"}
    load_model_state(two, state)
    assert equal(two.state_dict(), one.state_dict())
    del state["model"]["token"]
    with pytest.raises(CheckpointError, match="another model:\n  missing: token"):
        load_model_state(two, state)


def test_a_model_of_ones_own_starts_from_a_checkpoint_or_a_state_dict(saved: SaveAs) -> None:
    one = Whole()
    checkpoint = {"classy_state_dict": {"base_model": model_state(one)}}
    renamed = {f"module.{name}": value for name, value in one.state_dict().items()}
    for content, key, prefix in ((checkpoint, "classy_state_dict", ""), (renamed, "", "module.")):
        made = options(PARAMS_FILE=saved(content), STATE_DICT_KEY_NAME=key, REMOVE_PREFIX=prefix)
        two = Whole()
        assert init_from_file(two, made).left_out == ()
        assert equal(two.state_dict(), one.state_dict())
    with pytest.raises(CheckpointError, match=r"does not fit the model:\n  missing: body"):
        init_from_file(Whole(), options(PARAMS_FILE=saved(renamed), STATE_DICT_KEY_NAME=""))
    with pytest.raises(CheckpointError, match="Found: n"):
        init_from_file(Whole(), options(PARAMS_FILE=saved({"n": 1}), STATE_DICT_KEY_NAME=""))


# ---- Files of weights: what is read, what is refused, and the names in those of VISSL


TENSORS = {"a": torch.arange(3.0), "b.c": torch.ones(2, 2, dtype=torch.float16)}


class Hostile:
    """Loading it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("name", ["weights.torch", "weights.pth", "weights.safetensors"])
def test_tensors_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path)
    read = read_weights(path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[key], TENSORS[key]) for key in TENSORS)
    assert all(read[key].dtype == TENSORS[key].dtype for key in TENSORS)


def test_a_snapshot_in_the_cache_of_a_hub(tmp_path: Path) -> None:
    """Its files are links to names without an ending."""
    for place in ("blobs", "snapshots/abc"):
        (tmp_path / place).mkdir(parents=True)
    save_file(TENSORS, tmp_path / "blobs" / "3571366e")
    (tmp_path / "snapshots" / "abc" / "model.safetensors").symlink_to("../../blobs/3571366e")
    assert read_network(tmp_path / "snapshots" / "abc").keys() == TENSORS.keys()
    assert list_files(tmp_path / "snapshots" / "abc") == [
        tmp_path / "snapshots" / "abc" / "model.safetensors"
    ]


def test_the_index_of_a_large_model(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}))
    for place in (tmp_path, index):
        assert read_network(place).keys() == TENSORS.keys()
    assert list_files(tmp_path) == [tmp_path / f"{name}.safetensors" for name in sorted(TENSORS)]


def test_a_trusted_module_is_its_tensors(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "module.pth")
    assert read_network(tmp_path / "module.pth", trusted=True).keys() == {"weight", "bias"}


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
def test_a_hostile_file_is_refused_by_the_name_of_what_it_holds(tmp_path: Path, form: str) -> None:
    path, mark = tmp_path / "weights.torch", tmp_path / "code_was_run"
    content = {"model": Hostile(mark)}
    if form == "bare":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(NeedsCodeError, match=r"holds an object of posix\.mkdir, .*no code was run"):
        read_weights(path)
    assert not mark.exists()


def test_a_file_of_ones_own_may_run_its_code(tmp_path: Path) -> None:
    """That the mark is made proves that the test above could have seen it."""
    path, mark = tmp_path / "weights.torch", tmp_path / "code_was_run"
    torch.save({"model": Hostile(mark)}, path)
    read_weights(path, trusted=True)
    assert mark.exists()


@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x02}q\x00.", b"\xff" * 64])
def test_damage_is_told(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged or no weights file"):
        read_weights(path)


@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors"])
def test_a_pointer_of_git_lfs_is_told(tmp_path: Path, name: str) -> None:
    lines = ["version https://git-lfs.github.com/spec/v1", f"oid sha256:{'0' * 64}", "size 12345\n"]
    (tmp_path / name).write_text("\n".join(lines))
    with pytest.raises(CheckpointError, match=rf"{name} is a pointer of Git LFS. `git lfs pull`"):
        read_weights(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        read_weights(tmp_path / "weights.torch")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["weights.torch", "weights.safetensors", "a.shards/.metadata"])
def test_what_would_never_end_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    asked = path
    if path.parent != tmp_path:
        asked = path.parent
        torch.save({}, asked / REST)
    with pytest.raises(CheckpointError, match=f"{path.name} is a FIFO: expected a file"):
        read_weights(asked)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{path.name} is a device: expected a file"):
        read_weights(asked)


# ---- vissl names


class Toy(Trunk):
    """Joins two tensors, and gives to one of its own names another meaning."""

    feature_names = ("flatten",)
    vissl_constants = r"index$"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(2, 3), nn.Linear(2, 1)
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {}

    def vissl_name(self, name: str) -> str:
        module, _, kind = name.partition(".")
        theirs = {"q": "qk", "k": "qk", "first": "zeroth", "second": "first"}
        return f"_feature_blocks.{theirs[module]}.{kind}"


def equal_file(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_there_and_back() -> None:
    trunk = Toy()
    theirs = write_vissl(trunk)
    assert sorted({name.split(".")[1] for name in theirs}) == ["first", "qk", "zeroth"]
    torch.testing.assert_close(
        theirs["_feature_blocks.qk.weight"], torch.cat([trunk.q.weight, trunk.k.weight])
    )
    assert theirs["_feature_blocks.first.weight"] is not trunk.first.weight
    torch.testing.assert_close(theirs["_feature_blocks.first.weight"], trunk.second.weight)
    assert equal_file(read_vissl(trunk, theirs), trunk.state_dict())


def test_own_names_are_left_alone() -> None:
    """Also if something is missing: half-renamed it would load what belongs elsewhere."""
    trunk = Toy()
    own = trunk.state_dict()
    assert equal_file(read_vissl(trunk, own), own)
    del own["q.bias"], own["second.bias"]
    assert equal_file(read_vissl(trunk, own), own)


def test_what_fits_nowhere_keeps_its_name() -> None:
    trunk = Toy()
    strange = {
        **write_vissl(trunk), "strange.weight": torch.zeros(1),
        "_feature_blocks.qk.weight": torch.zeros(7, 2), "qk.position_index": torch.zeros(2),
    }  # fmt: skip
    back = read_vissl(trunk, strange)
    assert {"strange.weight", "qk.weight"} < back.keys()
    assert not {"q.weight", "k.weight", "qk.position_index"} & back.keys()
    assert "q.bias" in back
