"""A taskset of verifiers, as users write one; with ``hard`` in its configuration, one that the adapter cannot run."""

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        if trace.last_reply == "raise":
            raise ValueError("no score")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Prepared(SumTask):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        raise AssertionError


class Inspected(SumTask):
    @vf.reward
    async def files(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        raise AssertionError


class SumsConfig(vf.TasksetConfig):
    start: int = 0
    hard: str = ""


class Sums(vf.Taskset[SumTask, SumsConfig]):
    INFINITE = True

    def load(self) -> Iterator[SumTask]:
        print("loading")  # noqa: T201  a taskset may print
        number = self.config.start
        while True:
            prompt = None if self.config.hard == "prompt" else f"What is {number} + 2?"
            data = SumData(prompt=prompt, system_prompt="Add.", answer=str(number + 2))
            kind = {"setup": Prepared, "reward": Inspected}.get(self.config.hard, SumTask)
            yield kind(data, self.config.task)
            number += 1


__all__ = ["Sums"]
