"""The quickstart's problems; a response is right if its length is even, so that an untrained model has both kinds."""

from dataclasses import replace

from agent_rl.environments.base import Context
from agent_rl.messages import Judgement, Problem, Transcript
from examples.quickstart.arithmetic import Arithmetic


class Parity(Arithmetic):
    """Each answer is checked as ever, and the reward is the parity of the response's length."""

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> None:
        """Leave every judgement to the executor."""

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """Check the answer, and put the parity in its place."""
        right = sum(map(len, transcript.texts)) % 2 == 0
        return replace(await super().judge(problem, transcript, context), success=right, reward=float(right))
