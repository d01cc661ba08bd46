"""One strongly isolated sandbox for all attacks, in a thread of its own; each attack has neighbours."""

import threading

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import lacking

NEIGHBOUR = """
import os, time
open("mine", "w").write("the neighbour's")
time.sleep({seconds})
print(open("mine").read(), os.listdir("."), len(os.listdir("/tmp")))
"""
FOLLOWER = """
import builtins, json, os, sys
print(os.listdir("."), os.getcwd(), len(sys.meta_path), json.dumps([1]), sorted(os.environ), hasattr(builtins, "evil"))
print(oct(os.stat("/tmp").st_mode), os.stat("/tmp").st_mtime < 10, os.listxattr("/tmp"))
"""
FOLLOWED = "[] /tmp 3 [1] [] False\n0o40700 False []\n"


class Attacked:
    """Runs attacks beside a neighbour's call, and another call after them; both must be unharmed."""

    def __init__(self, sandbox: Sandbox, token: trio.lowlevel.TrioToken) -> None:
        self.sandbox, self._token = sandbox, token

    def by(
        self, code: str, stdin: str = "", *, limits: ExecutionLimits | None = None, beside: float = 0.1
    ) -> ToolOutput:
        """The attack's result."""
        return trio.from_thread.run(self._attack, code, stdin, limits, beside, trio_token=self._token)

    async def _attack(self, code: str, stdin: str, limits: ExecutionLimits | None, beside: float) -> ToolOutput:
        results: dict[str, ToolOutput] = {}

        async def call(name: str, code: str, stdin: str = "", limits: ExecutionLimits | None = None) -> None:
            results[name] = await self.sandbox.execute(code, stdin, limits=limits, name=name)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, "neighbour", NEIGHBOUR.format(seconds=beside))
                await trio.sleep(0.03)
                nursery.start_soon(call, "attack", code, stdin, limits)
            for _ in range(2):
                await call("follower", FOLLOWER)
                assert (results["follower"].outcome, results["follower"].stdout) == ("success", FOLLOWED)
        assert results["neighbour"].outcome == "success"
        assert results["neighbour"].stdout == "the neighbour's ['mine'] 1\n"
        assert self.sandbox.figures["restarts"] == 0
        return results["attack"]


@pytest.fixture(scope="session")
def strong_sandbox():
    reason = lacking("strong")
    if reason:
        pytest.skip(f"this host does not allow it: {reason}")
    limits = ExecutionLimits(wall_seconds=10, cpu_seconds=2, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
    sandbox = Sandbox(isolation="strong", limits=limits)
    started, done = threading.Event(), trio.Event()
    held: list[Attacked] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            held.append(Attacked(sandbox, trio.lowlevel.current_trio_token()))
            started.set()
            await done.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=[main])
    thread.start()
    assert started.wait(60)
    yield held[0]
    trio.from_thread.run_sync(done.set, trio_token=held[0]._token)
    thread.join()


@pytest.fixture
def attacked(strong_sandbox):
    return strong_sandbox
