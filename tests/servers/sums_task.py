"""Tasks of inspect-ai, as users write them: one that the adapter can run, and some that it cannot."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, match, model_graded_qa, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: One number.
            b: The other one.
        """
        return str(a + b)

    return execute


def samples(start: int, **more: str) -> list[Sample]:
    return [Sample(input=f"What is {n} + 2?", target=str(n + 2), **more) for n in range(start, start + 5)]


@task
def sums(start: int = 0) -> Task:
    return Task(dataset=samples(start), solver=[use_tools(add()), generate()], scorer=match(numeric=True))


@task
def graded() -> Task:
    return Task(dataset=samples(0), solver=generate(), scorer=model_graded_qa())


@scorer(metrics=[accuracy()])
def broken() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        raise ValueError("no score for you")

    return score


@task
def failing() -> Task:
    return Task(dataset=samples(0), solver=generate(), scorer=broken())


@task
def contained() -> Task:
    return Task(dataset=samples(0, sandbox="docker"), solver=generate(), scorer=match())
