"""Small programs. Hidden calls decide: the reward is the share of right results, success is all of them."""

import random
import re
from pathlib import Path

from agent_rl.environments.base import ChatMessages, Context, Environment
from agent_rl.environments.python_tools import python
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Judgement, Problem, Transcript

KINDS = {"even": lambda n: n % 2 == 0, "odd": lambda n: n % 2, "small (below 50)": lambda n: n < 50}
RESULTS = {"the sum": sum, "the number": len, "a sorted list": sorted, "a set": set}
TASKS = [(kind, result) for kind in KINDS for result in RESULTS]


def task(kind: str, result: str) -> Problem:
    """The hidden tests are lists and what is right for them, as Python."""
    lists = [random.Random(f"{kind} {test}").choices(range(100), k=8) for test in range(4)]
    tests = [[repr(x), repr(RESULTS[result](list(filter(KINDS[kind], x))))] for x in lists]
    text = f"Write a Python function solve(x) that returns {result} of the {kind} numbers in the list x."
    return Problem(f"{kind}: {result}", text, payload={"tests": tests})


class Programming(Environment):
    """The last block of Python is the program. The expected results never enter the process that runs it."""

    tools = (python,)

    def __init__(self, *, seed: int, base: Path) -> None:
        self._tasks = ListedTasks(
            [[task(*names) for names in TASKS[4:]]], [task(*names) for names in TASKS[:4]], seed=seed
        )

    def problems(self) -> ListedTasks:
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": problem.text}]

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        blocks = re.findall(r"```python\n(.*?)```", "\n".join(transcript.texts), re.DOTALL)
        tests, right = problem.payload["tests"], 0
        for given, expected in tests if blocks else ():
            output = await context.execute(f"{blocks[-1]}\nprint('\\n' + repr(solve({given})))")
            right += output.outcome == "success" and output.stdout.splitlines()[-1:] == [expected]
        return Judgement(right / len(tests), right == len(tests), {"tests_right": float(right)})
