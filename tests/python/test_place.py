from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sslengine.errors import ConfigError, LaunchError
from sslengine.python.place import choose_device, join_others, known_precision, make_precision
from tests.ranks import free_port

CPU = torch.device("cpu")

SCRIPT = """
import sys
import sslengine, torch
from tests.python.toys import Points, net, sgd, square
model = net()
session = sslengine.fit(model, square, Points(), sgd(model), epochs=1, batch_size=2, device="cpu")
rows = sslengine.predict(model, Points(), device="cpu")
told = [len(rows), torch.distributed.get_world_size(), session.history.losses()]
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once: two ranks write into one pipe
"""


def test_devices() -> None:
    assert choose_device("cpu") == CPU
    assert choose_device(CPU) == CPU
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(LaunchError, match="no GPU"):
            choose_device("cuda")


def test_an_unknown_device() -> None:
    told = "device: expected auto, gpu, cuda, mps, cpu .*got 'gppu:1'. Did you mean 'gpu'"
    with pytest.raises(ConfigError, match=told):
        choose_device("gppu:1")


def test_precisions() -> None:
    assert [make_precision(name, CPU).name for name in ("fp32", "bf16")] == ["fp32", "bf16"]
    with pytest.raises(ConfigError, match="fp16 requires a CUDA GPU"):
        make_precision("fp16", CPU)
    with pytest.raises(ConfigError, match="precision: expected auto, fp32, bf16, fp16; got 'half'"):
        known_precision("half")


def test_alone_there_is_nobody_to_join() -> None:
    join_others(CPU)
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_below_torchrun_ranks_find_each_other() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
               f"--master-port={free_port()}", "--no-python", sys.executable, "-c", SCRIPT]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    one, two = done.stdout.strip().splitlines()
    assert one == two
    assert one.startswith("10 2 [")
