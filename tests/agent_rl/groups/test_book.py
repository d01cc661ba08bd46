"""The group book against lists of all that it was told: every decision and every figure of a step is computed anew."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from agent_rl.config.selection import Solved
from agent_rl.environments.judging import LOST
from agent_rl.figures import RolloutMeans
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Closed, Decided, Dropped, Judge, Judged, Outage, Ready, SampledProblem
from agent_rl.groups.resampling import Candidate, select_uniform
from agent_rl.messages import Branch, GroupOpened, GroupOutcome, Judgement, Retry, StageEntered, TagCounts, Trajectory
from agent_rl.scheduling.curriculum import Frontier
from agent_rl.scheduling.ids import rollout_seed
from agent_rl_contract import builders
from tests.builders import evaluate_stage

Told = tuple[Trajectory, Judgement | None]
ENDS = ["finished"] * 14 + ["truncated", "truncated", "turn_limit", "failed", "cancelled", "environment_failed"]
TOO_LONG = ["finished", "prompt_too_long", "prompt_too_long"]
OUTCOMES = ["success", "success", "error", "malformed", "unknown_tool"]


def rollout(rng: random.Random, group: GroupOpened, sample: int, attempt: int, newest: int, end: str) -> Trajectory:
    """One of any length, that policies from the group's to the newest took turns to write."""
    tokens, versions = rng.randint(1, 9), sorted(rng.choices(range(group.policy.version, newest + 1), k=2))
    calls = [replace(builders.call(rng.choice(OUTCOMES)), cut=rng.random() < 0.2) for _ in range(rng.randint(0, 3))]
    texts = ("I think.",) * rng.randint(1, 3)
    made = builders.trajectory(
        group, sample, attempt=attempt, status=end, version=versions, tokens=tokens, calls=tuple(calls), texts=texts
    )
    unclear, success = rng.random() < 0.2, rng.random() < 0.5
    judgement = Judgement(rng.choice([0.0, 0.5, success]), success, {rng.choice("ab"): rng.random()}, rng.random())
    return replace(
        made,
        seconds=float(rng.randint(1, 99)),
        excluded=rng.choice([{}, {"side_call": min(1, made.written)}]),
        tags=TagCounts(tool_responses=rng.randint(0, 3)),
        branches=(Branch("rewrite", (1,)),) * rng.randint(0, 1),
        lists_tools=rng.random() < 0.1,
        judgement=None if unclear or end in LOST else judgement,
    )


def means(told: list[Told]) -> RolloutMeans:
    """What a step says of its rollouts, by the definitions of `RolloutMeans`."""
    judged = [(made, judgement) for made, judgement in told if judgement is not None]
    right = [made for made, judgement in judged if judgement.success]
    calls, of_right = (
        [call for made in each for call in made.transcript.calls] for each in ([m for m, _ in judged], right)
    )

    def share(part: Any, whole: list[Any]) -> float:
        return sum(part) / len(whole) if whole else 0.0

    return RolloutMeans(
        rollouts=len(judged),
        success=share([1] * len(right), judged),
        reward=share([each.reward for _, each in judged], judged),
        parts={
            name: float(np.mean([each.parts[name] for _, each in judged if name in each.parts]))
            for name in {name for _, each in judged for name in each.parts}
        },
        response_tokens=share([len(made.unpack().tokens) for made, _ in judged], judged),
        turns=share([len(made.transcript.texts) for made, _ in judged], judged),
        tool_calls=share([1] * len(calls), judged),
        tool_error_share=share([call.outcome != "success" for call in calls], calls),
        tool_error_share_correct=share([call.outcome != "success" for call in of_right], of_right),
        unaided_share_correct=share([all(c.outcome != "success" for c in made.transcript.calls) for made in right], right),
        malformed_call_share=share([call.outcome == "malformed" for call in calls], calls),
        unknown_tool_share=share([call.outcome == "unknown_tool" for call in calls], calls),
        cut_response_share=share([call.cut for call in calls], calls),
        rollouts_failed=sum(made.status in {"failed", "environment_failed"} for made, _ in told),
        prompts_too_long=sum(made.status == "prompt_too_long" for made, _ in told),
        truncated_share=share([made.status == "truncated" for made, _ in judged], judged),
        rollout_seconds=share([made.seconds for made, _ in judged], judged),
    )  # fmt: skip


def flat(of: RolloutMeans) -> dict[str, float]:
    row = asdict(of)
    return {name: round(value, 9) for name, value in {**row.pop("parts"), **row}.items()}


class Life:
    """Groups of one rl stage are opened and their rollouts end in any order; the learner leaves, and comes back."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.keep, self.samples = rng.choice([(2, 3), (2, 4), (3, 5)])
        self.algorithm = builders.algorithm(
            groups_per_step=rng.randint(1, 3),
            keep=self.keep,
            minimum_samples=rng.randint(2, 3),
            rollout_attempts=rng.randint(1, 3),
            max_staleness=rng.randint(0, 2),
            max_corrected_staleness=rng.randint(0, 3),
            on_stale=rng.choice(["wait", "drop", "drop", "train_corrected"]),
            refill=rng.random() < 0.3,
            overlong=rng.choice(["train", "mask"]),
        )
        self.curriculum = rng.choice([None, Frontier(admit=(0.25, 2.0))])
        self.book = GroupBook(
            algorithm_of=lambda _: self.algorithm,
            stages=[builders.rl_stage(), evaluate_stage()],
            seed=seed,
            select=self.select,
            several_environments=True,
            curricula=lambda _: self.curriculum,
        )
        self.version = self.stays = 0
        self.anew()

    def anew(self) -> None:
        """The stage is entered: nothing of it is known."""
        self.book.enter(StageEntered(0, 0, 0, restored=False), next_version=self.version)
        self.opened: dict[str, GroupOpened] = {}
        self.told: dict[str, list[list[Told]]] = {}  # of open groups, by sample and attempt
        self.decided: dict[str, tuple[list[tuple[Told, str]], int]] = {}  # with the oldest version that is trained
        self.running: dict[str, set[int]] = {}  # of groups that were dropped as stale
        self.lost_before: list[Told] = []
        self.stale: list[Trajectory] = []
        self.stale_seconds: list[float] = []
        self.in_a_row: list[tuple[str, int, bool]] = []
        self.outcomes: list[GroupOutcome] = []
        self.order, self.seconds = 0, dict[str, float]()
        self.ends: list[Trajectory] = []
        self.chosen: tuple[list[Candidate], tuple[int, ...]] = ([], ())

    def select(self, group: Any, rng: random.Random) -> tuple[int, ...]:
        kept = select_uniform(group, rng, keep=self.keep) if sum(each.tokens for each in group) % 7 else ()
        self.chosen = (list(group), kept)
        return kept

    # What happens

    def happens(self) -> None:
        """One of the events that are possible."""
        possible = [self.opens] if len(self.told) < 5 else []
        possible += [self.rollouts_end] * 3 + [self.a_rollout_comes_again] if self.told else []
        possible += [self.an_executor_answers] * 2 if self.to_judge() else []
        possible += [self.a_rollout_of_a_dropped_group_ends] * 2 if self.running else []
        possible += [self.the_learner_leaves_and_comes_back] if self.rng.random() < 0.05 else []
        self.rng.choice(possible)()

    def opens(self) -> None:
        number = len(self.opened)
        group = builders.opened(number, samples=self.samples, version=max(0, self.version - self.rng.randint(0, 2)))
        problem = replace(group.problem, environment="arithmetic" if number % 3 else "other")
        name, drawn = f"{group.group}-{self.stays}", self.rng.choice([None, 0, 7])  # a name of its own in each stay
        stays = replace(group, group=name, problem=problem, drawn=drawn)
        assert self.book.group_opened(stays)
        assert not self.book.group_opened(stays)
        assert not self.book.group_opened(replace(stays, group="another", stage=1))
        self.opened[stays.group] = stays
        self.told[stays.group] = [[] for _ in range(self.samples)]

    def rollouts_end(self) -> None:
        name, ends = self.rng.choice(sorted(self.told)), self.rng.choice([ENDS] * 6 + [["failed"], TOO_LONG])
        for _ in range(self.rng.choice([1, 3, 9])):
            if name not in self.told or not (free := [s for s in range(self.samples) if self.awaited(name, s)]):
                return
            sample = self.rng.choice(free)
            attempt = self.attempt(name, sample) + (self.rng.random() < 0.1)
            made = rollout(self.rng, self.opened[name], sample, attempt, self.version, self.rng.choice(ends))
            assert self.book.wants(made)
            assert not attempt or not self.book.wants(replace(made, attempt=self.attempt(name, sample) - 1))
            self.ended(made, self.book.trajectory(made))

    def an_executor_answers(self) -> None:
        made = self.rng.choice(self.to_judge())
        attempts = self.told[made.group][made.sample]
        given = Judgement(self.rng.choice([0.0, 0.25, 1.0]), success=self.rng.random() < 0.5)
        for late in (replace(made, attempt=made.attempt + 1), replace(made, group="gone")):
            assert self.book.judged(late.group, late.sample, late.attempt, given) == self.book.failed(late, "") == []
        attempts.pop()
        if self.rng.random() < 0.3:
            made = replace(made, transcript=replace(made.transcript, status="environment_failed"), reason="no")
            self.ended(made, self.book.failed(made, "no"))
        else:
            self.ended(made, self.book.judged(made.group, made.sample, made.attempt, given), given)

    def a_rollout_comes_again(self) -> None:
        told = [attempts[-1][0] for group in self.told.values() for attempts in group if attempts]
        if not told:
            return
        made = self.rng.choice(told)
        assert not self.book.wants(made)
        self.book.unwanted(made)
        if not self.awaited(made.group, made.sample):
            assert not self.book.wants(replace(made, attempt=made.attempt + 1)), "it is settled, or to be judged"
        assert not any(map(self.book.wants, (replace(made, sample=self.samples), replace(made, group="gone"))))

    def a_rollout_of_a_dropped_group_ends(self) -> None:
        name = self.rng.choice(sorted(self.running))
        sample = min(self.running[name])
        made = rollout(self.rng, self.opened[name], sample, 0, self.version, "cancelled")
        assert not self.book.wants(made)
        for _ in range(2):  # it counts once
            self.book.unwanted(made)
        self.running[name].remove(sample)
        self.stale.append(made)
        self.seconds[name] = max(self.seconds[name], made.seconds)
        if not self.running[name]:
            self.stale_seconds.append(self.seconds.pop(name))
            del self.running[name]

    def the_learner_leaves_and_comes_back(self) -> None:
        assert self.book.enter(StageEntered(0, 0, 0, restored=True), next_version=9) == [], "it is here already"
        dropped: list[Any] = self.book.enter(StageEntered(1, 9, 9, restored=False), next_version=self.version)
        assert [(each.group, each.reason, each.order) for each in dropped] == [
            (name, "stage_boundary", 0) for name in self.told
        ]
        self.stays += 1
        self.anew()

    # What must come of it

    def attempt(self, name: str, sample: int) -> int:
        """The number of the sample's next attempt."""
        attempts = self.told[name][sample]
        return attempts[-1][0].attempt + 1 if attempts and attempts[-1][0].status in LOST else 0

    def given_up(self, made: Trajectory) -> bool:
        return made.status == "prompt_too_long" or made.attempt + 1 >= self.algorithm.rollout_attempts

    def awaited(self, name: str, sample: int) -> bool:
        """Whether the sample has an attempt to come."""
        attempts = self.told[name][sample]
        return not attempts or (attempts[-1][0].status in LOST and not self.given_up(attempts[-1][0]))

    def to_judge(self) -> list[Trajectory]:
        last = [attempts[-1] for group in self.told.values() for attempts in group if attempts]
        return [made for made, judgement in last if judgement is None and made.status not in LOST]

    def ended(self, made: Trajectory, done: list[Any], judgement: Judgement | None = None) -> None:
        """A rollout of an open group has ended, and the book said so much."""
        name, group = made.group, self.told[made.group]
        judgement = judgement or made.judgement
        group[made.sample].append((made, judgement))
        self.ends.append(made)
        expected: list[Any] = []
        if judgement is not None:
            expected = [Judged(name, made.sample, made.attempt, judgement)]
        elif made.status not in LOST:
            seed = rollout_seed(self.book.seed, name, made.sample, made.attempt)
            expected = [Judge(made, self.opened[name].problem, seed)]
        if not any(self.awaited(name, sample) for sample in range(self.samples)) and not any(
            each.group == name for each in self.to_judge()
        ):
            expected += self.decides(name, done)
        assert done[: len(expected)] == expected
        self.closes(done[len(expected) :])

    def decides(self, name: str, done: list[Any]) -> list[Any]:
        """What must be said of a group whose samples are all settled."""
        group, told = self.opened[name], self.told.pop(name)
        judged = {sample: each[-1] for sample, each in enumerate(told) if each[-1][1] is not None}
        lost = [each for attempts in told for each in attempts if each[0].status in LOST]
        right = sum(judgement.success for _, judgement in judged.values() if judgement)
        too_few, solved = len(judged) < self.algorithm.minimum_samples, Solved(right, self.samples)
        too_long = any(attempts[-1][0].status == "prompt_too_long" for attempts in told)
        said = [each for each in done if isinstance(each, Outage)]
        if too_few:
            last = [made for made in self.ends if made.group == name and made.status in LOST][-1]
            self.in_a_row.append((name, len(lost), last.status == "prompt_too_long"))
            ends = len(self.in_a_row) >= self.algorithm.groups_per_step and not any(t for *_, t in self.in_a_row)
            assert [each.again for each in said] == [tuple(n for n, *_ in self.in_a_row)] * ends
            assert not ends or f"({sum(n for _, n, _ in self.in_a_row)} attempts failed)" in said[0].message
        else:
            self.in_a_row.clear()
            assert not said
        drop = Dropped(name, "too_few_rollouts", right / max(1, len(judged)), group.policy.version, 0)
        if too_few and not too_long:
            self.lost_before += lost
            return [drop, *said]
        drawn = group.number if group.drawn is None else group.drawn
        observed: list[Any] = []
        if self.curriculum is not None:
            self.outcomes.append(GroupOutcome(group.number, drawn, right, len(judged)))
            tokens, missing = sum(made.response_length for made, _ in judged.values()), self.samples - len(judged)
            problem = group.problem
            observed = [
                Decided(SampledProblem(0, group.number, problem.environment, problem.id, solved, missing, tokens))
            ]
        self.order += 1
        kept: list[int] = []
        if too_few:
            reason = "prompt_too_long"
        elif len({judgement.reward for _, judgement in judged.values() if judgement}) == 1:
            reason = "equal_rewards"
        elif self.curriculum is not None and not right / len(judged) > 0.25:
            reason = "not_admitted"
        else:
            reason, (candidates, places) = "not_selected", self.chosen
            assert candidates == [self.candidate(made, judgement) for made, judgement in judged.values() if judgement]
            kept = [candidates[place].sample for place in places]
        masked = self.algorithm.overlong == "mask"
        fates = [((m, j), reason if s not in kept else "overlong" if masked and m.status == "truncated" else "trained") for s, (m, j) in judged.items()]  # fmt: skip
        versions = [self.oldest(judged[s][0]) for s in kept]
        self.decided[name] = (fates + [(each, each[0].status) for each in lost], min(versions, default=0))
        if not kept:
            return [*observed, replace(drop, reason=reason, order=self.order), *said]
        rewards = tuple(judgement.reward for s in kept if (judgement := judged[s][1]))
        attempts = tuple((s, judged[s][0].attempt) for s in kept)
        return [*observed, Ready(name, attempts, rewards, min(versions), self.order), *said]

    @staticmethod
    def candidate(made: Trajectory, judgement: Judgement) -> Candidate:
        calls = made.transcript.calls
        failed, penalty = sum(call.outcome != "success" for call in calls), judgement.format_penalty
        shape = (len(made.transcript.texts), len(calls), failed, penalty, len(made.unpack().tokens))
        return Candidate(made.sample, judgement.reward, *shape, judgement.success, made.tags)

    def closes(self, done: list[Any]) -> None:
        """Steps that were closed, each after the groups that it drops."""
        dropped: list[str] = []
        for each in done:
            if isinstance(each, Dropped):
                dropped.append(each.group)
                assert each == self.drops(each.group)
                continue
            assert isinstance(each, Closed)
            assert (each.step.dropped, each.step.version) == (tuple(dropped), self.version)
            ages = {name: self.version - self.decided[name][1] for name in each.step.trained}
            assert list(each.step.staleness) == [*ages.values()]
            taken = [told for name in each.step.decided for told in self.decided.pop(name)[0]]
            taken += [(told, told[0].status) for told in self.lost_before]
            self.check_figures(each.figures, taken, list(ages.values()))
            assert each.figures.groups_dropped_stale == len(dropped)
            self.version, dropped = self.version + 1, []
            for spent in (self.lost_before, self.stale, self.stale_seconds):
                spent.clear()
        assert not dropped

    def drops(self, name: str) -> Dropped:
        """What must be said of a group that is dropped as stale, decided or not."""
        if name in self.decided:
            told = [each for each, _ in self.decided.pop(name)[0]]
            self.stale += [made for made, _ in told]
            judged = [(made, judgement) for made, judgement in told if judgement is not None]
            self.stale_seconds.append(max((made.seconds for made, _ in judged), default=0.0))
            oldest = min((self.oldest(made) for made, _ in judged), default=0)
        else:
            waited = {s for s in range(self.samples) if self.awaited(name, s)}
            samples = self.told.pop(name)
            told = [attempts[-1] for attempts in samples if attempts]
            self.stale += [made for attempts in samples for made, _ in attempts]
            ended = [made.seconds for made, _ in told if made.status not in LOST]
            if waited:
                self.running[name] = waited
                self.seconds[name] = max(ended, default=0.0)
            else:
                self.stale_seconds.append(max(ended, default=0.0))
            judged = [(made, judgement) for made, judgement in told if judgement is not None]
            oldest = self.opened[name].policy.version
        right = [judgement.success for _, judgement in judged if judgement]
        return Dropped(name, "stale", float(np.mean(right)) if right else 0.0, oldest, 0)

    def oldest(self, made: Trajectory) -> int:
        written = made.unpack().versions[0]
        return self.opened[made.group].policy.version if written is None else written

    def check_figures(self, figures: Any, taken: list[tuple[Told, str]], ages: list[int]) -> None:
        told = [each for each, _ in taken]
        assert flat(figures.sampled) == flat(means(told))
        of = {name: [t for t in told if self.opened[t[0].group].problem.environment == name] for name in ("arithmetic", "other")}  # fmt: skip
        assert {name: flat(each) for name, each in figures.environments.items()} == {n: flat(means(t)) for n, t in of.items() if t}  # fmt: skip
        delivered: Counter[str] = Counter()
        for made, fate in [(made, fate) for (made, _), fate in taken] + [(made, made.status if made.status in LOST else "stale") for made in self.stale]:  # fmt: skip
            written = int(made.unpack().loss_mask.sum())
            delivered.update({"sampled": written, fate: written - sum(made.excluded.values()), **made.excluded})
        assert figures.delivered == {name: count for name, count in delivered.items() if count}
        assert (figures.staleness_max, figures.staleness_mean) == (
            max(ages, default=None),
            np.mean(ages) if ages else None,
        )
        assert figures.lists_tools == any(made.lists_tools for made, _ in told)
        assert sum(figures.branches.values()) == sum(len(made.branches) for made, _ in told)
        trained = {made.group for (made, _), fate in taken if fate in {"trained", "overlong"}}
        lasted = [max(made.seconds for made, judgement in told if judgement and made.group == name) for name in trained]
        assert figures.group_seconds == (pytest.approx(np.mean(lasted)) if lasted else None)
        lasted = self.stale_seconds
        assert figures.stale_group_seconds == (pytest.approx(np.mean(lasted)) if lasted else None)

    def check_where_it_stands(self) -> None:
        missing = {}
        for name in self.told:
            attempts = [(s, self.attempt(name, s)) for s in range(self.samples) if self.awaited(name, s)]
            drawn, number = self.opened[name].drawn, self.opened[name].number
            missing[name] = [Retry(name, s, attempt, number, None, drawn) for s, attempt in attempts]
        progress, unfinished = self.book.progress(), self.book.unfinished(0)
        again = [each for name in missing for each in missing[name] if self.told[name][each.sample]]
        assert sorted(progress.retries, key=str) == sorted(again, key=str)
        assert (progress.decided, progress.dropped_groups) == (self.order, tuple(sorted(self.running)))
        assert progress.outcomes == tuple(self.outcomes)
        assert unfinished is not None
        assert {each.opened.group: [*each.missing] for each in unfinished.groups} == {
            n: m for n, m in missing.items() if m
        }
        assert (unfinished.opened, unfinished.outcomes) == (len(self.opened), tuple(self.outcomes))
        assert (self.book.open_groups, self.book.waiting_groups) == (len(self.told), len(self.decided))


@pytest.mark.parametrize("seed", range(30))
def test_the_book_says_what_follows_from_what_it_was_told(seed):
    life = Life(seed)
    for _ in range(120):
        life.happens()
        life.check_where_it_stands()
