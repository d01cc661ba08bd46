"""What a journal's rows add up to: counts for people and programs, and contradictions of the journal's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agent_rl.figures import SelectionFigures
from agent_rl.records.rows import GroupRow, SampledRow, SelectionRow, StepRow, TrajectoryRow
from agent_rl.records.store import Store


class Accounts(Store):
    """Questions about all groups or steps of a run. They change nothing."""

    def group_ids(self) -> list[str]:
        """Every group, by stage and number."""
        return [group for _, _, group in sorted(self._scan(GroupRow, ("stage", "number", "id")))]

    def opened_counts(self, stage: int) -> Counter[int | None]:
        """The number of groups that the stage (key None), and each evaluation within it (``at_step``), has opened."""
        counts: Counter[int | None] = Counter()
        for at_step, number in self._scan(GroupRow, ("at_step", "number"), stage=stage):
            counts[at_step] = max(counts[at_step], number + 1)  # numbers have no gaps
        return counts

    def uncounted(self, stage: int, reason: str) -> int:
        """The number of the stage's groups that were dropped for this reason and that no step counts."""
        where = {"stage": stage, "state": "dropped", "reason": reason, "decided_order": 0}
        return sum(1 for _ in self._scan(GroupRow, ("id",), **where))

    def stored_groups(self) -> set[str]:
        """The groups that have trajectories."""
        return {group for (group,) in self._scan(TrajectoryRow, ("group_id",))}

    def left(self) -> int:
        """The number of groups, trained, evaluated or counted towards a step, whose trajectories were removed."""
        there = self.stored_groups()
        groups = self._scan(GroupRow, ("id", "state", "decided_order"))
        return sum(group not in there for group, state, order in groups if order or state in {"trained", "evaluated"})

    def fates(self) -> list[tuple[int | None, str, str, bool, int]]:
        """Counts of training groups by (step, state, reason, whether any rollout of a dropped group succeeded)."""
        columns = ("step", "state", "reason", "right")
        counted = Counter(self._scan(GroupRow, columns, purpose="train"))
        return [(step, state, reason, bool(right), count) for (step, state, reason, right), count in counted.items()]

    def kept_rewards(self) -> dict[int, float]:
        """Mean reward of the rollouts that each step trained on, by version."""
        found: dict[int, list[float]] = {}
        for step, rewards in self._scan(GroupRow, ("step", "rewards"), state="trained"):
            found.setdefault(step, []).extend(rewards)
        return {step: sum(rewards) / len(rewards) for step, rewards in found.items() if rewards}

    def judged(self, stage: int) -> dict[str, float]:
        """How many rollouts of each evaluated group of a stage succeeded."""
        return {
            group: float(
                sum(
                    each.judgement is not None and each.judgement.success
                    for each in self._select(TrajectoryRow, group_id=group)
                )
            )
            for (group,) in self._scan(GroupRow, ("id",), stage=stage, state="evaluated")
        }

    def sampled(self, stage: int) -> list[SampledRow]:
        """What a select stage has counted so far, by number."""
        return self._select(SampledRow, stage=stage)

    def selection(self, stage: int) -> SelectionRow | None:
        """The result of a select stage; None while there is none."""
        return self._get(SelectionRow, stage)

    def selections(self) -> list[SelectionFigures]:
        """The figures of all select stages that have a result, by stage."""
        return [row.figures for row in self._select(SelectionRow)]

    def kept_problems(self, stage: int) -> dict[str, tuple[str, ...]] | None:
        """The ids of the problems that a select stage keeps, by environment; None while it has no result."""
        result = self.selection(stage)
        if result is None:
            return None
        numbers = set(result.kept)
        found: dict[str, list[str]] = {}
        for number, environment, problem in self._scan(SampledRow, ("number", "environment", "problem"), stage=stage):
            if number in numbers:
                found.setdefault(environment, []).append(problem)
        return {environment: tuple(ids) for environment, ids in found.items()}

    def lost_steps(self) -> list[str]:
        """Signs that rows of steps are missing: the learner would wait for such a step for ever."""
        versions: dict[int, list[int]] = {}
        for stage, version in self._scan(StepRow, ("stage", "version")):
            versions.setdefault(stage, []).append(version)
        faults = [
            f"stage {stage} has {len(each)} steps at versions {min(each)} to {max(each)}"
            for stage, each in sorted(versions.items())
            if len(each) != max(each) - min(each) + 1
        ]
        there = {None, *(version for each in versions.values() for version in each)}
        lost = ((step, group) for group, step in self._scan(GroupRow, ("id", "step")) if step not in there)
        return faults + [
            f"{group} is in the step at version {step}, which is missing" for step, group in sorted(lost)[:1]
        ]

    def faults(self) -> Iterator[str]:
        """Every contradiction of the journal's rules, group by group."""
        numbers: dict[str, list[int]] = {}
        settled: dict[str, tuple[str, int]] = {}
        for group, stage, at_step, number, purpose, state, reason, step in self._scan(
            GroupRow, ("id", "stage", "at_step", "number", "purpose", "state", "reason", "step")
        ):
            where = f"stage {stage}" if at_step is None else f"stage {stage}, its evaluation after {at_step} steps"
            numbers.setdefault(where, []).append(number)
            if step is not None:
                settled[group] = state, step
            contradictions = (
                ("trained without a step", state == "trained" and step is None),
                ("dropped without a reason", state == "dropped" and not reason),
                ("a training group marked evaluated", state == "evaluated" and purpose == "train"),
                ("an evaluation group marked trained", state == "trained" and purpose != "train"),
                ("open, yet in a step", state == "open" and step is not None),
            )
            yield from (f"{group}: {what}" for what, found in contradictions if found)
        for where, each in sorted(numbers.items()):
            if len(each) != max(each) + 1:
                yield f"{where}: {len(each)} groups recorded, but numbers reach {max(each) + 1}"
        seen: dict[str, int] = {}
        for row in self._select(StepRow):
            expected = "dropped" if row.skipped else "trained" if row.trained else "ready"
            for group in row.groups:
                if group in seen:
                    yield f"{group}: in the steps at versions {seen[group]} and {row.version}"
                seen[group] = row.version
                state, at = settled.get(group, ("missing or in no step", None))
                if (state, at) != (expected, row.version):
                    yield f"{group}: in the step at version {row.version}, but {state} (step {at})"
        for group, (state, _) in settled.items():
            if state == "trained" and group not in seen:
                yield f"{group}: trained, but in no step"
