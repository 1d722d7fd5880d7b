"""What all tests share: one thread, and property tests that draw the same examples on every machine."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: small tensors gain nothing from more

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")
