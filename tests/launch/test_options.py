from sslengine.launch.options import SlurmOptions


def test_slurm_is_refused_and_its_other_keys_do_no_harm() -> None:
    assert list(SlurmOptions(CONSTRAINT="volta32gb", PARTITION="x").check()) == []
    (problem,) = SlurmOptions(USE_SLURM=True).check()
    assert problem.startswith("USE_SLURM: submitting jobs is not available yet")
