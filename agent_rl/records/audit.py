"""The balance of a run: every group that was opened is trained once, dropped for a reason, or open.

No group is trained with more staleness than the rule of its step permits. The filter wrote what the balance adds up.
So `audit` also computes staleness and rewards of groups in steps again, from the tokens and judgements of the rollouts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from agent_rl.records.checkpoint_files import CheckpointError, verify
from agent_rl.records.continuing import CHECKPOINTS, MADE_WITH, faults_between
from agent_rl.records.journal import Decode, Journal, JournalError, read_journal, stored_decoder
from agent_rl.records.run_directory import in_use


@dataclass(frozen=True, slots=True)
class Audit:
    """The balance of a run: opened = trained + dropped by reason + open. A ready group counts as open until trained."""

    opened: int
    trained: int
    open: int
    dropped: dict[str, int]
    evaluated: int
    evaluation_open: int
    steps: int
    empty_steps: int
    skipped_steps: int
    left: int
    """Groups whose trajectories have left the journal."""
    staleness: int | None
    """The most with which a group was trained; None where none was."""
    delivered: dict[str, int]
    """Tokens of the groups that steps have decided: ``sampled``, ``trained``, and the others by cause."""
    branches: dict[str, int]
    """Branches of their rollouts, by cause."""
    faults: tuple[str, ...]
    recomputed: Counter[str] = field(default_factory=Counter)
    """Groups in steps: ``groups`` computed again from tokens and judgements, and those that have ``left`` the journal.
    Of the former, the ``right`` and ``wrong`` rollouts, and those kept."""

    @property
    def balanced(self) -> bool:
        """Whether every group is counted exactly once and no rule is broken."""
        return not self.faults and self.opened == self.trained + sum(self.dropped.values()) + self.open

    def figures(self) -> dict[str, float]:
        """The counts by the names the summary uses."""
        return {
            "groups_opened": self.opened,
            "groups_trained": self.trained,
            "groups_dropped": sum(self.dropped.values()),
            "groups_open": self.open,
            **{f"tokens_delivered_{name}": count for name, count in sorted(self.delivered.items())},
            **{f"branches_{name}": count for name, count in sorted(self.branches.items())},
        }

    def lines(self) -> list[str]:
        """For people."""
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items())) or "none"
        lost = sum(self.dropped.values())
        sign = "=" if self.opened == self.trained + lost + self.open else "!="
        groups = f"{self.opened} opened {sign} {self.trained} trained + {lost} dropped ({dropped}) + {self.open} open"
        unused = f"{self.empty_steps} without a group to train and {self.skipped_steps} skipped as not finite"
        lines = [
            f"training groups: {groups}",
            f"steps: {self.steps}, of which {unused}",
            f"groups of evaluations and selections: {self.evaluated} evaluated, {self.evaluation_open} open or dropped",
        ]
        if self.staleness is not None:
            lines.append(f"staleness of what was trained: at most {self.staleness}")
        if self.recomputed:
            again = self.recomputed
            kept = " and ".join(f"{again[f'{each} kept']:,} of {again[each]:,} {each}" for each in ("right", "wrong"))
            lines.append(f"computed again from tokens and judgements: {again['groups']:,} groups in steps; kept {kept}")
            lines += [f"believed, since they left the journal: {again['left']:,} groups in steps"] * (again["left"] > 0)
        if self.delivered:
            causes = {name: count for name, count in self.delivered.items() if name not in {"sampled", "trained"}}
            named = ", ".join(f"{count:,} {name}" for name, count in sorted(causes.items())) or "none"
            sampled, of_them = self.delivered.get("sampled", 0), self.delivered.get("trained", 0)
            excluded = f"{sum(causes.values()):,} excluded ({named})"
            lines.append(f"sampled tokens of decided groups: {sampled:,} = {of_them:,} trained + {excluded}")
        if self.branches:
            named = ", ".join(f"{count:,} {name}" for name, count in sorted(self.branches.items()))
            lines.append(f"branches of their rollouts: {named}")
        if self.left:
            left = f"those of {self.left} groups were removed from the journal (see run.keep_trajectories)"
            lines.append(f"trajectories: {left}")
        lines += [f"FAULT {fault}" for fault in self.faults]
        lines.append("balanced" if self.balanced else "NOT BALANCED")
        return lines


def audit_journal(journal: Journal, decode: Decode | None = None) -> Audit:
    """Balance an open journal, and compare it with the payloads, where ``decode`` is given."""
    training, others, dropped = Counter[str](), Counter[str](), Counter[str]()
    for (purpose, state, reason), count in journal.counts().items():
        (training if purpose == "train" else others)[state] += count
        if purpose == "train" and state == "dropped":
            dropped[reason] += count
    steps, empty, skipped = journal.step_counts()
    ages = list(journal.ages())
    late = (
        f"{group}: trained at version {version} with staleness {age}, beyond its limit of {limit}"
        for group, version, age, limit in ages
        if limit is not None and age > limit
    )
    tokens, branches, undelivered = _delivered(journal)
    recomputed, differences = (Counter[str](), []) if decode is None else _recomputed(journal, decode)
    return Audit(
        opened=training.total(),
        trained=training["trained"],
        open=training["open"] + training["ready"],
        dropped=dict(dropped),
        evaluated=others["evaluated"],
        evaluation_open=others.total() - others["evaluated"],
        steps=steps,
        empty_steps=empty,
        skipped_steps=skipped,
        left=journal.left(),
        staleness=max((age for _, _, age, _ in ages), default=None),
        delivered=tokens,
        branches=branches,
        faults=(*journal.faults(), *late, *undelivered, *differences),
        recomputed=recomputed,
    )


def _recomputed(journal: Journal, decode: Decode) -> tuple[Counter[str], list[str]]:
    """Counts of the groups in steps, and faults that name both values where tokens or judgements say otherwise.

    The payloads of kept rollouts are read, one group at a time.
    """
    counts: Counter[str] = Counter()
    faults: list[str] = []
    keep = json.loads(journal.fact(MADE_WITH) or "{}").get("algorithm.keep", math.inf)
    for step in journal.steps():
        for group in () if step.skipped else step.groups:
            try:
                found = _differences(journal, decode, group, step.version, keep, counts)
                faults += [f"{group}: {fault}" for fault in found]
            except (JournalError, ValueError) as error:
                faults.append(f"{group}: {error}")
    return counts, faults


def _differences(
    journal: Journal, decode: Decode, group: str, version: int, keep: float, counts: Counter[str]
) -> Iterator[str]:
    row = journal.group(group)
    if row is None or row.state not in {"ready", "trained"}:
        return  # `Journal.faults` names it
    stored = journal.trajectories(group, row.kept)
    judged = journal.outlines(group)  # after the payloads, since a compaction may come between
    try:
        opened = decode(row.opened) if judged else None
        rollouts = [(decode(each.payload), each) for each in stored]
    except JournalError:  # a message of another release
        opened = None
    if opened is None:
        counts["left"] += 1
        return
    kept = {
        made.sample: (made, each.judgement)
        for made, each in rollouts
        if each.judgement is not None and (made.group, made.sample, made.attempt) == (group, each.sample, each.attempt)
    }
    if len(kept) < len(row.kept):
        yield f"keeps {row.kept}, of which the samples {sorted(kept)} alone are judged rollouts of the group"
        return
    counts["groups"] += 1
    counts.update("right" if each.success else "wrong" for each in judged.values() if each is not None)
    counts.update("right kept" if judgement.success else "wrong kept" for _, judgement in kept.values())
    if len(kept) > keep:
        yield f"keeps {len(kept)} rollouts, where algorithm.keep is {keep}"
    rewards = tuple(kept[sample][1].reward for sample, _ in row.kept)
    if len(set(rewards)) < 2:
        yield f"keeps the rewards {rewards}, which give no advantage"
    written = [made.unpack().versions[0] for made, _ in kept.values()]
    oldest = min((opened.policy.version if each is None else each for each in written), default=row.oldest)
    compared = ("rewards", rewards, row.rewards), ("staleness", version - oldest, version - row.oldest)
    for what, ours, theirs in compared:
        if ours != theirs:
            yield f"{what} {ours} by its tokens and judgements, {theirs} by the filter"


def _delivered(journal: Journal) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Tokens and branches of all steps, and the faults in them: the filter sends what the learner has trained."""
    tokens: Counter[str] = Counter()
    branches: Counter[str] = Counter()
    faults = []
    for step in journal.steps():
        counts = dict(step.figures.delivered)
        sent = counts.pop("trained", 0)
        learner = step.learner_figures
        if not step.trained or learner is None:
            counts["waiting"] = sent
        elif step.skipped or learner.skipped:
            counts["step_skipped"] = sent
        else:
            told = learner.trained_tokens or learner.trained_rollouts  # a learner of one's own may count nothing
            counts["trained"] = learner.trained_tokens if told else sent
            if told and counts.get("sampled") and learner.trained_tokens != sent:
                faults.append(
                    f"step {step.version}: {sent} tokens were sent to be trained, and {learner.trained_tokens} were"
                )
        if "sampled" in counts:
            tokens.update(counts)
        branches.update(step.figures.branches)
    return {name: count for name, count in tokens.items() if count}, dict(branches), faults


def audit(directory: Path) -> Audit:
    """Balance and recompute the journal of a run directory. Raises JournalError when there is none."""
    with closing(read_journal(directory)) as journal:
        return audit_journal(journal, stored_decoder())


@dataclass(frozen=True, slots=True)
class DeepAudit:
    """The result: ``faults`` name bytes that changed or were lost, ``notes`` name what was not checked."""

    rows: int
    checkpoints: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"read again: {self.rows} rows of the journal, {self.checkpoints} checkpoints",
            *(f"note: {note}" for note in self.notes),
            *(f"FAULT {fault}" for fault in self.faults),
            "every byte is as it was written" if not self.faults else "NOT AS WRITTEN",
        ]


def deep_audit(directory: Path) -> DeepAudit:
    """Read a run directory again. Raises JournalError when the journal cannot be read at all."""
    under_way = in_use(directory)
    notes = ["the run is under way: journal and checkpoints were not compared"] if under_way else []
    with closing(read_journal(directory)) as journal:
        rows, faults = journal.verify()
        if not under_way:
            faults += faults_between(directory, journal)
    folders = sorted(path for name in ("best-*", "version-*") for path in (directory / CHECKPOINTS).glob(name))
    for folder in folders:
        try:
            verify(folder)
        except CheckpointError as error:
            faults.append(str(error))
    return DeepAudit(rows, len(folders), tuple(faults), tuple(notes))
