from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

from sslengine import catalog, precision  # noqa: F401
from sslengine.config.facts import precision_of_amp
from sslengine.engine.build import build_run_precision
from sslengine.errors import ConfigError
from sslengine.models.options import AmpOptions, ModelOptions
from sslengine.precision import Precision, build_precision
from tests.config.recipes import resolved

CPU = torch.device("cpu")


def test_bf16_on_the_cpu_computes_in_bf16_and_gives_losses_float32() -> None:
    amp = Precision(CPU, torch.bfloat16)
    layer = nn.Linear(4, 4)
    with amp.autocast():
        output = layer(torch.randn(2, 4))
    assert output.dtype == torch.bfloat16
    nested = amp.as_full({"a": [output, torch.tensor([1])]})
    assert nested["a"][0].dtype == torch.float32
    assert nested["a"][1].dtype == torch.int64
    assert amp.as_full(torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert amp.name == "bf16"
    assert not amp.scaler.is_enabled()


def test_one_word_chooses_a_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU only its name is asked: it need not be there."""
    gpu = torch.device("cuda:0")
    names = {
        choice: build_precision(choice, CPU).name for choice in ("auto", "fp32", "tf32", "bf16")
    }
    assert names == {"auto": "fp32", "fp32": "fp32", "tf32": "fp32", "bf16": "bf16"}
    with pytest.raises(ConfigError, match=r"MACHINE\.PRECISION: fp16 requires a CUDA GPU"):
        build_precision("fp16", CPU)
    for has_bf16, chosen in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has_bf16: has)
        assert precision.best(gpu) == chosen
    with pytest.raises(ConfigError, match=r"this GPU does not support bf16. Set fp16, or auto"):
        build_precision("bf16", gpu)


def test_of_apples_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 as torch's autocast has it there, from macOS 14 on; fp32 if nothing is said."""
    apple = torch.device("mps")
    assert build_precision("auto", apple).name == "fp32"
    with pytest.raises(ConfigError, match="fp16 requires a CUDA GPU"):
        build_precision("fp16", apple)
    for newer in (True, False):
        monkeypatch.setattr(
            torch.backends.mps, "is_macos_or_newer", lambda major, minor, newer=newer: newer
        )
        if newer:
            assert build_precision("bf16", apple).name == "bf16"
            continue
        with pytest.raises(ConfigError, match="bf16 on Apple's GPU requires macOS 14"):
            build_precision("bf16", apple)


def test_a_module_with_float64_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of Apple's is played by the CPU."""
    module = nn.BatchNorm1d(3)
    module.register_buffer("sums", torch.zeros(3, dtype=torch.float64))
    assert precision.move(module, CPU).sums.dtype == torch.float64
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu",))
    assert precision.widest(CPU) == torch.float32
    assert precision.move(module, CPU).sums.dtype == torch.float32
    assert module.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize(
    ("choice", "benchmark", "deterministic", "tf32", "benchmarks"),
    [
        ("auto", False, False, True, True),
        ("auto", False, True, True, False),
        ("fp32", False, False, False, False),
        ("bf16", False, False, True, False),
        ("", True, False, None, True),  # as torch has it
    ],
)
def test_what_kernels_may_do(
    choice: str, benchmark: bool, deterministic: bool, tf32: bool | None, benchmarks: bool
) -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic
    try:
        precision.set_kernels(choice, benchmark, deterministic)
        expected = before[:2] if tf32 is None else (tf32, tf32)
        assert (cudnn.allow_tf32, matmul.allow_tf32) == expected
        assert (cudnn.benchmark, cudnn.deterministic) == (benchmarks, deterministic)
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


@pytest.mark.parametrize(
    ("amp", "expected"),
    [
        ({"USE_AMP": False}, "fp32"),
        ({}, "fp16"),
        ({"AMP_DTYPE": "bfloat16"}, "bf16"),
        ({"AMP_TYPE": "apex", "AMP_DTYPE": "bfloat16"}, "fp16"),
        ({"AMP_TYPE": "apex", "AMP_ARGS": {"opt_level": "O3"}}, "fp16"),
        ({"AMP_TYPE": "apex", "AMP_ARGS": {"opt_level": "O0"}}, "fp32"),
    ],
)
def test_the_precision_of_vissls_keys(amp: dict[str, Any], expected: str) -> None:
    options = AmpOptions(**{"USE_AMP": True, "AMP_TYPE": "pytorch", **amp})
    assert precision_of_amp(ModelOptions(AMP_PARAMS=options)) == expected


def test_amp_in_fp16_on_a_machine_without_gpu_names_its_key() -> None:
    config = resolved(MODEL__AMP_PARAMS__USE_AMP=True).config
    with pytest.raises(ConfigError, match=r"^config\.MODEL\.AMP_PARAMS"):
        build_run_precision(config, CPU)


def test_the_scalers_state_goes_round() -> None:
    one = Precision(CPU, torch.float16)
    one.scaler._init_growth_tracker = 7
    one.scaler._lazy_init_scale_growth_tracker(CPU)
    two = Precision(CPU, torch.float16)
    two.load_state_dict(one.state_dict())
    assert two.state_dict() == one.state_dict()
    two.load_state_dict({})  # of a checkpoint in another precision
    Precision().load_state_dict(Precision().state_dict())


def test_the_scalers_arguments_reach_torch() -> None:
    """A step of it: the scale grows after growth_interval steps and backs off after an overflow."""
    precision = Precision(
        CPU, torch.float16,
        {"init_scale": 32.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2},
    )  # fmt: skip
    weight = nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([weight], lr=0.5)
    scales = []
    for factor in (1.0, 1.0, torch.inf):
        optimizer.zero_grad()
        precision.backward((weight * factor).sum())
        precision.step(optimizer)
        scales.append(precision.scaler.get_scale())
    assert scales == [32.0, 128.0, 32.0]
    assert weight.item() == 0.0
