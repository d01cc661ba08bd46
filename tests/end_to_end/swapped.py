"""Classes that take the places of others in a run under way. Each says in its log that it is the one that runs."""

from actors.kv_scheduler import KVScheduler
from actors.learner import Learner
from actors.tool_executor import ToolExecutor
from tests.end_to_end.faulty import CallsTools, HalfRight


class OtherScheduler(KVScheduler):
    """Another class."""


class OtherGenerator(CallsTools):
    """Another class."""


class OtherExecutor(ToolExecutor):
    """Another class."""


class OtherFilter(HalfRight):
    """Another class."""


class OtherLearner(Learner):
    """Another class."""


class NeverReady(CallsTools):
    """It does not get ready."""

    async def prepare(self) -> None:
        """Fail, when all is loaded."""
        await super().prepare()
        raise RuntimeError("this generator has a fault")


class Broken(HalfRight):
    """It does not start."""

    async def start(self) -> None:
        """Fail."""
        await super().start()
        raise RuntimeError("this filter has a fault")
