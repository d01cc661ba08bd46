"""Machines for tests: those of the benchmarks, or a skip that says why there are none."""

import pytest

from benchmarks.machines import Machine, machines, unavailable

__all__ = ["Machine", "machines", "skip_without"]


def skip_without(*programs: str) -> None:
    """Skip a test that needs root, namespaces or programs that are not here, and say what is missing."""
    if why := unavailable(*programs):
        pytest.skip(why)
