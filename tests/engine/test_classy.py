import subprocess
import sys

from sslengine.engine.task import ClassyTask, SelfSupervisionTask


def test_the_task_is_a_classy_task_and_nothing_else() -> None:
    assert SelfSupervisionTask.__bases__ == (ClassyTask,)


def test_importing_it_says_nothing() -> None:
    """Classy Vision imports deprecated modules of torchvision, which warn."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", "import sslengine.engine.task"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "classy_vision" not in done.stderr
    assert "video" not in done.stderr
