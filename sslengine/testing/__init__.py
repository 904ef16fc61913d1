"""Contract tests: check the promises of a component's kind in real runs.

    import sslengine.testing

    test_mine = sslengine.testing.contract("method", "my_package.my_file:MyLoss")

See docs/testing.md.
"""

from sslengine.testing.contract import check, contract
from sslengine.testing.promises import BrokenPromise

__all__ = ["BrokenPromise", "check", "contract"]
