"""What all tests share: one thread, and property tests that draw the same examples on every machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: small tensors gain nothing from more

import pytest
from hypothesis import settings
from known_failures import KNOWN

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items):
    """Mark what is known to fail: reported as xfailed, or as xpassed once it is repaired."""
    for item in items:
        if item.nodeid in KNOWN:
            item.add_marker(pytest.mark.xfail(reason="known, see tests/known_failures.py", strict=False))
