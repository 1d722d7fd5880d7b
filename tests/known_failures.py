"""Tests that fail today and are being repaired: each is named, none is silent."""

KNOWN = (
    "tests/test_mutants.py::test_check_rejects_every_slip[beyond.axial]",
    "tests/test_mutants.py::test_check_rejects_every_slip[beyond.report]",
    "tests/test_mutants.py::test_check_rejects_every_slip[cache.fixed]",
    "tests/test_mutants.py::test_check_rejects_every_slip[cache.sinks]",
    "tests/test_mutants.py::test_check_rejects_every_slip[cache.step]",
    "tests/test_mutants.py::test_check_rejects_every_slip[choosing.factor]",
    "tests/test_mutants.py::test_check_rejects_every_slip[choosing.read]",
    "tests/test_mutants.py::test_check_rejects_every_slip[choosing.squeeze]",
    "tests/test_mutants.py::test_check_rejects_every_slip[far.buckets]",
    "tests/test_mutants.py::test_check_rejects_every_slip[far.sinks]",
    "tests/test_mutants.py::test_check_rejects_every_slip[length.reading]",
    "tests/test_mutants.py::test_check_rejects_every_slip[rope.convert_checkpoint]",
    "tests/test_mutants.py::test_check_rejects_every_slip[rope.peak]",
    "tests/test_mutants.py::test_check_rejects_every_slip[rope.rotary_layer]",
)
