"""What every scheduler promises: the staleness budget, the KV caches, and each sample of each group asked for once."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import trio

from agent_rl.messages import GroupOpened, GroupsUnfinished, GroupsUnwanted, Retry, RolloutRequest, UnfinishedGroup
from agent_rl_contract.base import EVALUATE_STAGE, RL_STAGE, RoleContract, trio_test
from agent_rl_contract.scheduler_peers import ENGINES, EVALUATION, RL, Peers
from agent_rl_contract.stage import stand_ins

LONGEST_RESPONSE: int = RL_STAGE["max_response_tokens"]  # type: ignore[assignment]
NOTHING_OPEN = GroupsUnfinished(RL, 0, ())


class SchedulerContract(RoleContract):
    """Derive and set ``actor``, its ``settings``, and ``promises``."""

    role: ClassVar[str] = "kv_scheduler"
    promises: ClassVar[Literal["longest", "likely"]] = "longest"
    """Whether an engine's rollouts fit its KV cache at their longest, or as far as is likely from what ended."""

    @asynccontextmanager
    async def among_peers(
        self,
        folder: Path,
        *,
        seconds: Callable[[RolloutRequest], float] = lambda _: 0.05,
        unfinished: GroupsUnfinished = NOTHING_OPEN,
        tokens: Callable[[RolloutRequest], int] | None = None,
        **changes: Any,
    ) -> AsyncIterator[tuple[Any, Peers]]:
        """The topology and the peers; the scheduler is started, and restarted, by the test."""
        topology = self.topology(folder, replicas=2, **changes)
        async with stand_ins(topology, self.role, concurrency={"rollout_generator": 4096}) as stage:
            yield topology, Peers(stage, seconds=seconds, unfinished=unfinished, tokens=tokens)

    @asynccontextmanager
    async def alive(self, folder: Path, **changes: Any) -> AsyncIterator[Peers]:
        """The peers, and the actor under test running among them."""
        among = self.among_peers(folder, **changes)
        async with among as (topology, peers), self.running(topology, peers.stage, incarnation=0):
            yield peers

    # Promises

    @trio_test
    async def test_nothing_is_opened_before_the_filter_said_what_is_open(self, tmp_path: Path) -> None:
        """A scheduler that was restarted must not open a group a second time."""
        async with self.among_peers(tmp_path) as (topology, peers):
            peers.answering = trio.Event()
            async with self.running(topology, peers.stage, incarnation=0):
                peers.begin()
                await self.settled()
                assert peers.asked == [RL], f"the filter was asked about the stages {peers.asked}"
                assert not peers.opened, "groups were opened before the filter answered"
                peers.answering.set()
                await self.settled()
                assert peers.opened, "no group was opened after the filter answered"

    @trio_test
    async def test_a_group_is_recorded_before_its_rollouts_are_requested(self, tmp_path: Path) -> None:
        """GroupOpened is acknowledged first: no rollout may come back for a group the journal does not know."""
        async with self.among_peers(tmp_path) as (topology, peers):
            peers.recording = trio.Event()
            async with self.running(topology, peers.stage, incarnation=0):
                peers.begin()
                await self.settled()
                assert peers.opened, "no group was opened"
                assert not peers.requests, "rollouts were requested before their group was recorded"
                peers.recording.set()
                await self.settled()
                assert peers.requests, "the recorded groups' rollouts were never requested"
                assert not peers.early, f"requested before their group was recorded: {peers.early}"

    @trio_test
    async def test_each_sample_is_requested_exactly_once(self, tmp_path: Path) -> None:
        """With its group's problem, stage and purpose; names and seeds are all different."""
        async with self.alive(tmp_path) as peers:
            peers.begin(*ENGINES)
            await self.settled(20)
            self.check_requests(peers.opened, peers.requests)

    def check_requests(self, opened: Sequence[GroupOpened], requests: Sequence[RolloutRequest]) -> None:
        """What the generators were asked for, held against what was opened."""
        wanted = Counter((group.group, sample) for group in opened for sample in range(group.samples))
        asked = Counter((request.group, request.sample) for request in requests)
        missing, surplus = wanted - asked, asked - wanted
        assert not missing, f"never requested: {sorted(missing)[:5]}"
        assert not surplus, f"requested more than once: {sorted(surplus)[:5]}"
        assert [group.number for group in opened] == list(range(len(opened))), "group numbers must count up from 0"
        assert len({request.rollout for request in requests}) == len(requests), "two rollouts have one name"
        assert len({request.seed for request in requests}) == len(requests), "two rollouts have one seed"
        groups = {group.group: group for group in opened}
        for request in requests:
            group = groups[request.group]
            same = (request.problem, request.stage, request.purpose) == (group.problem, group.stage, group.purpose)
            assert same, f"{request.rollout} is not about its group's problem, stage or purpose"
            assert request.sampling.max_response_tokens == LONGEST_RESPONSE, "not the stage's max_response_tokens"
            assert request.sampling.max_turns == RL_STAGE["max_turns"], "not the stage's max_turns"

    def test_groups_are_opened_within_the_staleness_budget_and_up_to_it(self, tmp_path: Path) -> None:
        """At most (max_staleness + version served + 1) * groups_per_step, by the oldest version an engine serves."""
        for budget in (0, 1, 3):
            self.run(partial(self.spend_budget, tmp_path / f"budget-{budget}", budget))

    async def spend_budget(self, folder: Path, budget: int) -> None:
        """Versions come one after the other; a generator lags behind."""
        stages = [{**RL_STAGE, "steps": 100}]
        async with self.alive(folder, algorithm={"max_staleness": budget}, stages=stages) as peers:
            for version in range(4):
                peers.publish(version)
                peers.load(ENGINES[0], version)
                peers.load(ENGINES[1], max(0, version - 1))
                await self.settled()
                bound = (budget + max(0, version - 1) + 1) * 2
                said = f"with max_staleness {budget} and engines at versions {version} and {max(0, version - 1)}"
                assert len(peers.opened) <= bound, f"{len(peers.opened)} groups were opened {said}: {bound} may be"
                assert len(peers.opened) == bound, f"only {len(peers.opened)} of {bound} groups were opened {said}"
                peers.load(ENGINES[1], version)
                await self.settled()
            peers.progress(uncounted=3)
            await self.settled()
            bound = (budget + 3 + 1) * 2 + 3
            assert len(peers.opened) == bound, (
                f"3 replaced groups may be opened again: {bound}, not {len(peers.opened)}"
            )

    @trio_test
    async def test_no_more_groups_are_opened_than_the_stage_trains(self, tmp_path: Path) -> None:
        """A stage of one step opens one step's groups."""
        async with self.alive(tmp_path, stages=[{**RL_STAGE, "steps": 1}]) as peers:
            peers.begin()
            await self.settled()
            assert len(peers.opened) == 2, f"{len(peers.opened)} groups were opened for a step of 2"

    @trio_test
    async def test_no_engine_is_promised_more_than_it_has(self, tmp_path: Path) -> None:
        """An engine's rollouts fit its KV cache and its number of rows; yet all are placed.

        With ``promises = "longest"``, they fit at their longest. With "likely", what they use fits most of the time,
        and more run at once than would fit at their longest.
        """
        if self.promises == "likely":
            await self.promise_what_is_likely(tmp_path)
            return

        def seconds(request: RolloutRequest) -> float:
            return 0.1 + 0.3 * (request.sample % 3)

        async with self.alive(tmp_path, seconds=seconds) as peers:
            peers.publish()
            peers.load(ENGINES[0], total=3 * LONGEST_RESPONSE + 50)
            peers.load(ENGINES[1], most=2)
            await self.settled(60)
            full = peers.most_in_flight
            assert full[ENGINES[0]] <= 3, (
                f"{full[ENGINES[0]]} rollouts at once in a cache for fewer than 4; a scheduler that reserves what is"
                ' likely sets promises = "likely"'
            )
            assert full[ENGINES[1]] <= 2, f"{full[ENGINES[1]]} rollouts at once in an engine of 2 rows"
            self.check_requests(peers.opened, peers.requests)
            assert len(peers.opened) == 4, "the budget was not spent, though rollouts kept ending"

    async def promise_what_is_likely(self, folder: Path) -> None:
        """Rollouts of 10 to 100 tokens, of which the generator tells; one of the engines is small."""

        def tokens(request: RolloutRequest) -> int:
            return 10 * (1 + request.seed % 10)

        def seconds(request: RolloutRequest) -> float:
            return tokens(request) / 200

        stages, total = [{**RL_STAGE, "steps": 100}], 2 * LONGEST_RESPONSE
        async with self.alive(folder, seconds=seconds, tokens=tokens, stages=stages) as peers:
            for version in range(0, 40, 4):
                peers.publish(version)
                peers.load(ENGINES[0], version, total=total)
                peers.load(ENGINES[1], version, most=2)
                await self.settled(4)
            self.check_requests(peers.opened, peers.requests)
            assert len(peers.opened) == (1 + 36 + 1) * 2, "the budget was not spent, though rollouts kept ending"
            full, used = peers.most_in_flight, peers.used[ENGINES[0]]
            assert full[ENGINES[1]] <= 2, f"{full[ENGINES[1]]} rollouts at once in an engine of 2 rows"
            over = sum(each > total for each in used) / len(used)
            assert over <= 0.07, f"the rollouts at once used more than the cache in {over:.0%} of all cases"
            assert full[ENGINES[0]] > 2, f"only {full[ENGINES[0]]} rollouts at once, which fit at their longest"

    @trio_test
    async def test_failed_rollouts_are_requested_again_once(self, tmp_path: Path) -> None:
        """As the attempt the filter names, with a seed of its own, however often it is announced."""
        async with self.alive(tmp_path) as peers:
            peers.begin()
            await self.settled()
            retry = Retry(peers.opened[1].group, 2, 1, peers.opened[1].number)
            for decided in range(3):
                peers.progress(decided=decided, retries=(retry,))
                await self.settled()
            count = peers.asked_for()[retry.group, 2, 1]
            assert count == 1, f"the announced attempt was requested {count} times"
            first, again = (r for r in peers.requests if (r.group, r.sample) == (retry.group, 2))
            assert again.seed != first.seed, "another attempt needs another seed"
            assert again.problem == first.problem, "another attempt is about the same problem"

    @trio_test
    async def test_a_restarted_scheduler_asks_for_what_is_missing_and_for_nothing_else(self, tmp_path: Path) -> None:
        """It keeps nothing: the filter tells it the open groups, what they lack, and how many were opened."""
        known = await self.open_some(tmp_path / "first")
        missing = (Retry(known[1].group, 0, 1, known[1].number), Retry(known[1].group, 3, 0, known[1].number))
        unfinished = GroupsUnfinished(RL, 3, (UnfinishedGroup(known[1], missing),))
        folder = tmp_path / "second"
        async with self.among_peers(folder, unfinished=unfinished) as (topology, peers):
            peers.recorded.add(known[1].group)
            async with self.running(topology, peers.stage, incarnation=2):
                peers.begin(*ENGINES)
                await self.settled()
                fresh = {group.group for group in peers.opened}
                asked = [(r.group, r.sample, r.attempt) for r in peers.requests if r.group not in fresh]
                assert sorted(asked) == [(m.group, m.sample, m.attempt) for m in missing], f"it asked for {asked}"
                numbers = [group.number for group in peers.opened]
                assert numbers == [3], f"of 4 groups in the budget 3 were open; it opened the numbers {numbers}"

    async def open_some(self, folder: Path) -> list[GroupOpened]:
        """What a scheduler opens at first."""
        async with self.alive(folder) as peers:
            peers.begin(*ENGINES)
            await self.settled()
        return peers.opened

    def test_what_a_group_is_about_follows_from_seed_and_number(self, tmp_path: Path) -> None:
        """Two schedulers of one run open the same groups, and ask for the same rollouts with the same seeds."""
        seen: list[Any] = []

        async def main() -> None:
            folder = tmp_path / str(len(seen))
            async with self.alive(folder, algorithm={"max_staleness": 3}) as peers:
                peers.begin()
                await self.settled()
            seen.append((peers.opened, {request.rollout: request for request in peers.requests}))

        self.run(main)
        self.run(main)
        assert seen[0][0] == seen[1][0], "two schedulers of one run opened different groups"
        assert seen[0][1] == seen[1][1], "two schedulers of one run asked for different rollouts"

    @trio_test
    async def test_a_new_stage_starts_afresh(self, tmp_path: Path) -> None:
        """An evaluation: each held-out problem once sampled and once greedily, by the new stage's own numbers."""
        async with self.alive(tmp_path) as peers:
            peers.begin()
            await self.settled()
            before = len(peers.opened)
            peers.publish(3, stage=EVALUATION, begun=3)
            await self.settled()
            assert len(peers.opened) == before, "no engine serves the stage's policy yet"
            peers.load(ENGINES[0], 3)
            await self.settled()
            groups = peers.opened[before:]
            purposes = Counter(group.purpose for group in groups)
            wanted = dict.fromkeys(("evaluate_sampled", "evaluate_greedy"), EVALUATE_STAGE["problems"])
            assert purposes == wanted, f"groups by purpose: {dict(purposes)}"
            assert {group.samples for group in groups} == {1}, "an evaluation takes one sample of each"
            greedy = {g.problem.id for g in groups if g.purpose == "evaluate_greedy"}
            sampled = {g.problem.id for g in groups if g.purpose == "evaluate_sampled"}
            assert greedy == sampled, f"sampled were {sampled}, greedy {greedy}"
            for request in peers.requests:
                is_greedy = request.sampling.temperature == 0.0
                assert is_greedy == (request.purpose == "evaluate_greedy"), f"{request.purpose}: {request.sampling}"

    @trio_test
    async def test_rollouts_of_dropped_groups_are_called_off(self, tmp_path: Path) -> None:
        """While any is in flight; once none is, the name leaves the announcement."""
        async with self.alive(tmp_path, seconds=lambda _: 30.0) as peers:
            peers.begin()
            await self.settled(2)
            group = peers.opened[0].group
            peers.progress(dropped_groups=(group,))
            await self.settled(2)
            told = [m.groups for m in peers.stage[ENGINES[0]].log if isinstance(m, GroupsUnwanted)]
            assert told[-1:] == [(group,)], f"the generator was told {told}"
            await self.settled(60)
            told = [m.groups for m in peers.stage[ENGINES[0]].log if isinstance(m, GroupsUnwanted)]
            assert told[-1] == (), f"nothing of {group} is in flight any more, yet {told[-1]} are unwanted"
