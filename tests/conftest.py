"""What holds for all tests."""

import inspect
from functools import partial

import pytest
import trio
from hypothesis import Phase, settings
from trio.testing import MockClock

# No deadline: how long an example takes says how busy the machine is. Always the same examples: a failure is one of the
# change under test.
settings.register_profile("agent_rl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)  # others every time: `make test-all`
settings.register_profile(
    "mutants", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)  # which shrinks nothing
settings.load_profile("agent_rl")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test: in virtual time, or by the clock that its marker ``clock`` makes, or in ``real_time``."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    made = pyfuncitem.get_closest_marker("clock")
    clock = made.kwargs["make"]() if made else MockClock(autojump_threshold=0)
    trio.run(partial(test, **given), clock=None if pyfuncitem.get_closest_marker("real_time") else clock)
    return True
