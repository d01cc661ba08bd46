"""What holds for all tests."""

import inspect
import os
from collections import Counter
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported: a test has one core

import trio
from hypothesis import Phase, settings
from trio.testing import MockClock

# Processes that tests start find agent_rl_contract too, also where the project is not installed.
SUITES = str(Path(__file__).parent / "contract")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), SUITES)))

# No deadline: how long an example takes says how busy the machine is. Always the same examples: a failure is one of the
# change under test.
settings.register_profile("agent_rl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)  # others every time: `make test-all`
FOUND = (Phase.explicit, Phase.generate)  # `make mutants`: that a test fails is enough, and no example is made smaller
settings.register_profile("mutants", deadline=None, derandomize=True, phases=FOUND)
settings.load_profile("agent_rl")
BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--trio-seed", default="0", help="decides in which order trio runs tasks that are ready at once")
    parser.addoption("--seconds", action="store_true", help="print the seconds of processors by room")


def processor_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    item.stash[BEGAN] = processor_seconds()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The order is one that can be had again, and differs from test to test."""
    trio._core._run._r.seed(f"{item.config.getoption('--trio-seed')} {item.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure says with which seed it comes again."""
    report = yield
    report.seconds = processor_seconds() - item.stash[BEGAN] if report.when == "teardown" else 0.0
    if report.failed:
        report.sections.append(("order of tasks", f"--trio-seed {item.config.getoption('--trio-seed')}"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What all tests took of the processors; with ``--seconds`` by room too."""
    rooms: Counter[str] = Counter()
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        rooms["/".join(Path(report.nodeid.partition("::")[0]).parts[1:3])] += getattr(report, "seconds", 0.0)
    if config.getoption("--seconds"):
        for room, seconds in rooms.most_common():
            terminalreporter.write_line(f"{room:40}{seconds:8.1f}")
    terminalreporter.write_line(f"test_cpu_seconds {processor_seconds():.0f}")  # with what collecting takes


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
