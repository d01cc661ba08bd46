"""What of a data set of maths problems is kept, beside the filters of agent_rl/data/filters.py."""

from __future__ import annotations

from agent_rl.environments.maths.rewards import is_integer
from agent_rl.messages import Problem


class Integers:
    """Keeps problems whose answer is an integer, as the paper's RL data are."""

    def reason(self, problem: Problem) -> str:
        """Why the problem is dropped, by its answer alone; empty: it is kept."""
        return "" if is_integer(problem.answer) else "answer_is_no_integer"
