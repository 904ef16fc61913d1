"""The benchmark of methods beside lightly: it compares the same work."""

from __future__ import annotations

import pytest

pytest.importorskip("lightly")
from tools.perf_measurement import bench_methods


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")  # lightly's
@pytest.mark.parametrize("method", ["dino", "ibot", "dinov2"])
def test_both_compute_the_same_losses_from_the_same_networks(method: str) -> None:
    """With our weights in lightly's parts: the first loss, where all centres are zero."""
    ours = bench_methods.Ours(method, batch=2)
    theirs = bench_methods.Theirs(ours, method)
    _copy(ours.task.base_model, theirs)
    expected = theirs.compute().detach()
    ours.step()
    assert float(ours.task.last_batch.loss) == pytest.approx(float(expected), rel=1e-4)
    ours.task.close()
    ours.folder.cleanup()


def _copy(model, theirs) -> None:  # type: ignore[no-untyped-def]
    names = {"mlp.0": "layers.0", "mlp.2": "layers.2", "mlp.4": "layers.4"}
    for network in (theirs.student, theirs.teacher):
        own = {
            name: value for name, value in model.trunk.state_dict().items() if name != "mask_token"
        }
        found = network["backbone"].vit.load_state_dict(own, strict=False)
        assert not found.unexpected_keys
        if hasattr(model.trunk, "mask_token"):
            network["backbone"].mask_token.data.copy_(model.trunk.mask_token.view(1, 1, -1))
        for head, copy in zip(
            model.heads, (network[k] for k in ("head", "patch_head") if k in network)
        ):
            state = {}
            for name, value in head.state_dict().items():
                for old, new in names.items():
                    name = name.replace(old, new)
                state[name.replace("prototypes0.weight_v", "last_layer.weight_v")] = value
            missing = copy.load_state_dict(state, strict=False).missing_keys
            assert missing == ["last_layer.weight_g"]


def test_memory_is_that_of_a_step() -> None:
    import torch

    used = bench_methods.added_mib(lambda: torch.ones(32, 2**20).sum())
    assert 110 < used < 200
