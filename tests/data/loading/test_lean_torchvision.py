from __future__ import annotations

import subprocess
import sys

import pytest

# Each is tried in a process of its own, forked from one that has torch.
USES = (
    "from torchvision.transforms import ToTensor, RandomResizedCrop\n"
    "from PIL import Image\n"
    "assert ToTensor()(RandomResizedCrop(8)(Image.new('RGB', (20, 20)))).shape == (3, 8, 8)\n"
    "assert not {'torchvision.models.convnext', 'torchvision.ops', 'torch._dynamo'} & {*sys.modules}",
    "import torchvision.transforms, torchvision; torchvision.models.resnet18",
    "import torchvision; torchvision.get_image_backend()\n"
    "boxes, scores = torch.tensor([[0., 0, 1, 1], [0, 0, 1, 1]]), torch.tensor([0.5, 0.9])\n"
    "assert torchvision.ops.nms(boxes, scores, 0.5).tolist() == [1]",
    "from torchvision.models.resnet import Bottleneck\n"
    "assert not {'torchvision.models.convnext', 'torchvision.ops', 'torch._dynamo'} & {*sys.modules}\n"
    "import torchvision.models as models; assert models.convnext_tiny and models.get_model",
    "from torchvision.models import *; resnet18",
    # a function, which has the name of its file
    "import torchvision; torchvision.models.alexnet(num_classes=2)",
    "from torchvision.models import googlenet; googlenet.__call__",
    "from torchvision.models.alexnet import AlexNet\n"
    "import torchvision.models as models; assert type(models.alexnet(num_classes=2)) is AlexNet",
    "from torchvision.transforms import v2; v2.RandomCrop(3)",
)
FORK = """
import os, sys, torch
import sslengine.data.loading.lean_torchvision
for number, use in enumerate({uses!r}):
    child = os.fork()
    if not child:
        exec(use)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"failed: {{use}}")
"""


@pytest.mark.parametrize("uses", [USES[:3], pytest.param(USES[3:], marks=pytest.mark.slow)])
def test_transforms_come_alone_and_the_rest_when_it_is_asked_for(uses: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK.format(uses=uses)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_imported_or_not_installed_is_left_alone() -> None:
    code = (
        "import json, sys, types; before = json\n"
        "from sslengine.data.loading.lean_torchvision import defer\n"
        "defer('json'); import json; assert json is before and type(json) is types.ModuleType\n"
        "defer('not_there_at_all'); assert 'not_there_at_all' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
