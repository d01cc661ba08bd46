"""The contract of environments: the same problems, prompts and judgements in every process."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from agent_rl.environments.base import Environment, TaskError
from agent_rl.environments.judging import OUTPUTS, made_up_transcripts, sound_judgement, tried_judge
from agent_rl.environments.load import sound_prompt
from agent_rl.messages import Problem


class EnvironmentContract:
    """Derive, and set ``environment`` and the ``settings`` it is made with."""

    environment: ClassVar[type[Environment]]
    settings: ClassVar[dict[str, Any]] = {}

    def make(self, base: Path) -> Environment:
        """As an actor of a run makes it; ``base`` is where the settings' paths start from."""
        return self.environment(seed=7, base=base, **self.settings)  # type: ignore[call-arg]

    def problems(self, made: Environment) -> Iterator[Problem]:
        """Some of its problems, trained and held out."""
        source = made.problems()
        held_out = 8 if source.evaluation_count is None else min(8, source.evaluation_count)
        yield from (source.evaluation(number) for number in range(held_out))
        try:
            yield from (source.problem(stage, number) for stage in (0, 2) for number in (0, 1, 5))
        except TaskError:
            assert held_out, "there are neither training nor held-out problems"

    def test_making_it_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """Scheduler, generators, executors and learner each make one."""
        before = sorted(tmp_path.rglob("*"))
        self.make(tmp_path)
        assert sorted(tmp_path.rglob("*")) == before, "the constructor wrote files"

    def test_problems_and_prompts_are_the_same_whoever_asks(self, tmp_path: Path) -> None:
        """With the same seed and settings, in any order: a restarted scheduler asks for the same ones again."""
        first, second = self.make(tmp_path), self.make(tmp_path)
        problems = list(self.problems(first))
        assert list(self.problems(second)) == problems, "another one of it has other problems"
        for problem in reversed(problems):
            prompts = [sound_prompt(made, problem) for made in (first, second, first)]
            assert prompts[0] == prompts[1] == prompts[2], f"the prompt of {problem.id} changes"
        ids = {problem.id: problem for problem in problems}
        assert all(ids[problem.id] == problem for problem in problems), "two problems have one id"

    def test_judging_gives_what_can_be_used_whatever_a_model_wrote(self, tmp_path: Path) -> None:
        """The same judgement again, from another one of it too; of ``judge`` also however programs end."""
        first, second = self.make(tmp_path), self.make(tmp_path)
        judges = type(first).judge is not Environment.judge
        for problem in self.problems(first):
            for transcript in made_up_transcripts():
                found = [made.judge_at_once(problem, transcript) for made in (first, second, first)]
                assert found[0] == found[1] == found[2], f"{problem.id}: {transcript} is judged in several ways"
                if found[0] is not None:
                    sound_judgement(found[0])
                    continue
                assert judges, f"{problem.id}: {transcript} is not judged at once, and there is no judge"
                for output in OUTPUTS:
                    said = [tried_judge(made, problem, transcript, output) for made in (first, second, first)]
                    assert said[0] == said[1] == said[2], f"{problem.id}: {output} is judged in several ways"

    def test_judge_and_observe_are_asynchronous(self, tmp_path: Path) -> None:
        """Executors await them."""
        made = self.make(tmp_path)
        for method in ("judge", "observe"):
            assert inspect.iscoroutinefunction(getattr(made, method)), f"write async def {method}"

    def test_demonstrations_are_the_same_for_the_same_chance(self, tmp_path: Path) -> None:
        """Where there are any: a restarted learner goes on where it was."""
        try:
            first, again = (self.make(tmp_path).problems().demonstrations(random.Random(1)) for _ in range(2))
        except TaskError:
            return
        assert list(islice(first, 5)) == list(islice(again, 5)), "the same chance shows other demonstrations"
