"""What an agent at the gateway asks of its rollout: where each turn stands in the tree, and which are trained."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import trio

from actors.engines.base import TurnRequest, TurnResult
from actors.rollout_generator import served
from actors.rollout_generator.agent_loop import AgentLoop
from actors.rollout_generator.served import ServedRollout, ServedRollouts
from actors.rollout_generator.sessions import Sessions
from agent_rl.environments.harness import outcome_of
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import CompletedTurn, PolicyVersion, Said, Sampling, SessionAsked, TurnAsked, TurnGiven
from agent_rl.rollout.episode import Episode
from agent_rl.rollout.keys import generator_of, key_for
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.scheduling.ids import strand_seed
from agent_rl_contract import builders

CHAT = ChatFormat(build_tokenizer(), builders.environments())
TOOLS = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]'


class Engine:
    """Writes ``turn number 1``, ``turn number 2``, ... of which each is a token longer, in a second."""

    policy = PolicyVersion(1, 3)

    def __init__(self) -> None:
        self.requests: list[TurnRequest] = []
        self.before = 0
        """Turns that were written by an earlier process."""

    async def generate(self, request: TurnRequest) -> TurnResult:
        self.requests.append(request)
        number = self.before + len(self.requests)
        tokens = [*CHAT.encode(f"turn number {number}{'.' * number}"), CHAT.end_of_turn]
        count = min(len(tokens), request.max_tokens)
        arrays = (
            np.array(tokens[:count], np.int32),
            np.full(count, -0.25, np.float32),
            np.tile(np.array([[1, 3]], np.int32), (count, 1)),
        )
        await trio.sleep(1 + 1e-6 * number)  # turns at once end in the order in which they began
        if request.wrote is not None:
            request.wrote(*(each[: count // 2] for each in arrays))
        return TurnResult(
            **dict(zip(("tokens", "logprobs", "policies"), arrays, strict=True)),
            finish="stop" if count == len(tokens) else "length",
        )


class Agent:
    """An agent of one rollout, which keeps the turns that it was given."""

    def __init__(self, rollout: ServedRollout, engine: Engine, kept: list[CompletedTurn]) -> None:
        self.rollout, self.episode, self.engine, self.kept, self.asks = rollout, rollout.episode, engine, kept, 0
        self.texts = [text for _, text in sorted((turn.number, CHAT.turn_text(turn.written[:-1].tolist())) for turn in kept)]  # fmt: skip

    def asked(self, words: str, **changes: Any) -> TurnAsked:
        """``Go. | =1 | On. {1}``: a message of the user, the first turn, and a message that quotes it."""
        self.asks += 1
        said = []
        for word in words.split(" | ") if words else ():
            turn = re.fullmatch(r"=(\d)", word)
            text = re.sub(r"{(\d)}", lambda found: self.texts[int(found[1]) - 1], word)
            said.append(Said("assistant", self.texts[int(turn[1]) - 1]) if turn else Said("user", text))
        return TurnAsked("", f"ask {self.asks}", messages=tuple(said), **{"tools": TOOLS, **changes})

    async def says(self, words: str, **changes: Any) -> TurnGiven:
        given = await self.rollout.answer(self.asked(words, **changes))
        self.texts += [each.content for each in given.choices if each.content not in self.texts]
        return given

    @property
    def where(self) -> str:
        """The sequence of the newest turn, and why it began."""
        strand = max(self.episode.strands, key=lambda each: max(each.turns, default=0))
        return f"{strand.number}{strand.cause if strand.number else ''}"

    @property
    def left_out(self) -> int:
        made = self.episode.trajectory(generator="g", seconds=0.0)
        assert sum(made.excluded.values()) == made.written - made.unpack().loss_mask.sum()
        return made.excluded.get("side_call", 0)


@asynccontextmanager
async def agent(
    kept: list[CompletedTurn] | None = None, *, longest: int = 900, turns: int = 20, most: int = 5000
) -> AsyncIterator[Agent]:
    episode = Episode(builders.request(sampling=Sampling(1.0, most, turns)), CHAT, longest, begun=False)
    turns_kept: list[CompletedTurn] = [] if kept is None else kept
    assert not turns_kept or episode.resume(turns_kept) == ""
    context = SimpleNamespace(now=trio.current_time)
    engine = Engine()

    def told(each: Any) -> None:
        turns_kept.append(episode.complete(1.0, each.strand, each.place, each.given))

    async with trio.open_nursery() as nursery:
        loop = AgentLoop(context, CHAT, engine, None)  # type: ignore[arg-type]
        yield Agent(ServedRollout(loop, episode, nursery, told), engine, turns_kept)


NONE = {"tools": "[]"}
OTHER = {"model": "small-model"}

# What is said, how, and where the turn stands then (`1rewrite`); `-1`: without a token of turn 1 in training.
STORIES: list[tuple[str, list[Any]]] = [
    ("a history that goes on is one sequence", ["Go.", "0", "Go. | =1 | On.", "0", "Go. | =1 | On. | =2 | And?", "0"]),
    ("a history that is changed", ["Go.", "0", "Go. | =1 | On.", "0", "Go. | =1 | Stop.", "1rewrite", "Went. | =1 | On.", "2sub_agent"]),
    ("the same once more, and a turn that others went on from", ["Go.", "0", "Go.", "1again", "Go. | =1 | On.", "0", "Go. | =1 | So?", "2rewrite", "Go. | =2 | So?", "1again"]),
    ("other tools", ["Go.", "0", "Go. | =1 | On.", {"tools": TOOLS.replace("look", "see")}, "1sub_agent"]),
    ("a new conversation, and one that quotes a turn", ["Go.", "0", "Other.", "1sub_agent", "So far: {1} Go on.", "2compaction"]),
    ("a request for a summary with which the agent goes on", ["Go.", "0", "Sum up.", NONE, "1side_call-2", "Before: {2}", "2compaction", "Before: {2} | =3 | On.", "2compaction"]),
    ("a summary of a quoted turn that nothing goes on with", ["Go.", "0", "Sum up: {1}", NONE, "1compaction-2", "Other.", "2sub_agent-2"]),
    ("no tools where none are ever listed", ["Go.", NONE, "0", "Other.", NONE, "1sub_agent", "More.", "2sub_agent", "Last.", NONE, "3side_call-4"]),
    ("another model's name", ["Go.", "0", "Title?", OTHER, "1side_call-2", "Other.", {"model": "openai/agent-rl"}, "2sub_agent-2", "More.", {"model": "agent-rl"}, "3sub_agent-2"]),
    ("another model's name in all requests", ["Go.", OTHER, "0", "Other.", OTHER, "1side_call", "Go. | =1 | On.", OTHER, "0"]),
    ("a single token", ["Go.", "0", "Quota?", {"max_tokens": 1}, "1side_call-1 token", "Other.", {"max_tokens": 2}, "2sub_agent-1 token"]),
    ("a side call that goes on what is trained stays in training", ["Go.", "0", "Go. | =1 | Title?", OTHER, "0"]),
    ("a side call with which a trained turn goes on", ["Go.", "0", "Title?", OTHER, "1side_call-2", "Title? | =2 | Why?", "1side_call-23", "Title? | =2 | So?", "2rewrite"]),
    ("what a harness says comes first", ["Go.", "0", "Read.", {**OTHER, "evidence": "sub_agent"}, "1sub_agent", "Name.", {"evidence": "side_call"}, "2side_call-3", "Sum.", {**NONE, "evidence": "compaction"}, "3compaction-3"]),
]  # fmt: skip


def requests(story: list[Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """What is said, how, and where the turn stands then."""
    for at, words in enumerate(story):
        if isinstance(words, str) and not re.fullmatch(r"\d[a-z_]*(-.*)?", words):
            changes = story[at + 1] if isinstance(story[at + 1], dict) else {}
            yield words, changes, story[at + 1 + bool(changes)]


@pytest.mark.parametrize("story", [pytest.param(story, id=name) for name, story in STORIES])
async def test_where_a_turn_stands_and_what_is_trained(story: list[Any]) -> None:
    async with agent() as at:
        for words, changes, expected in requests(story):
            assert (await at.says(words, **changes)).choices, words
            where, _, out = expected.partition("-")
            lengths = [len(turn.written) for turn in at.kept]
            tokens = 1 if "token" in out else sum(lengths[int(number) - 1] for number in out)
            assert (at.where, at.left_out) == (where, tokens), words
        seeds = {request.rollout: request.seed for request in at.engine.requests}
        first = at.episode.request
        assert seeds == {
            first.rollout + (f"+{strand.number}" if strand.number else ""): strand_seed(first.seed, strand.number)
            for strand in at.episode.strands
        }


TAKEN_UP = ["Go.", "0", "Sum up.", NONE, "1", "Before: {2}", "2", "Sum up. | =2 | More.", NONE, "1", "So?", "3"]
TWICE = ["Go.", {"count": 2, "max_tokens": 60}, "0", "Go. | =1 | On.", "0", "Go. | =2 | On.", "1again"]


@pytest.mark.parametrize("story", [*(pytest.param(story, id=name) for name, story in STORIES), TWICE, TAKEN_UP])
async def test_a_rollout_that_goes_on_after_a_kill_ends_as_one_that_nothing_disturbed(story: list[Any]) -> None:
    async def told(kept: list[CompletedTurn]) -> tuple[Any, ...]:
        async with agent(kept) as at:
            at.texts.clear()
            at.engine.before = len(kept)
            given = [await at.says(words, **changes) for words, changes, _ in requests(story)]
            made = at.episode.trajectory(generator="g", seconds=0.0)
            strands = [(each.cause, each.side, each.whole, each.turns) for each in at.episode.strands]
            said = [(each.tokens.tolist(), each.finish) for turn in given for each in turn.choices]
            prompts = [(turn.prompt.tolist(), turn.policy_version) for turn in given]
            return strands, made.excluded, made.unpack().loss_mask.tolist(), said, prompts

    whole: list[CompletedTurn] = []
    undisturbed = await told(whole)
    for cut in range(1, len(whole)):
        assert await told(whole[:cut]) == undisturbed, cut


async def test_tokens_in_place_of_messages_are_no_side_call_and_go_on_where_they_extend_a_turn() -> None:
    async with agent() as at:
        first = await at.says("Go.")
        whole = [*first.prompt.tolist(), *first.choices[0].tokens.tolist()]
        for tokens, where in ((whole, "1again"), ([*whole, 5], "0"), ([*whole, 6], "2rewrite"), (whole[:-1], "3again")):
            given = await at.says("", tokens=np.array(tokens, np.int32), tools="[]")
            assert (given.prompt.tolist(), at.where, at.left_out) == (tokens, where, 0)


async def test_a_retry_gets_the_turns_that_were_lost_and_no_others() -> None:
    async with agent() as at:
        first = await at.says("Go.", max_tokens=60)
        for words, changes, turns in (
            ("Go.", {"again": True}, ["turn number 1."]),
            ("Go.", {"again": True, "count": 2}, ["turn number 2..", "turn number 3..."]),
            ("Go.", {"again": True, "count": 2}, ["turn number 2..", "turn number 3..."]),
            ("Go.", {}, ["turn number 4...."]),
            ("On.", {"again": True}, ["turn number 5....."]),
            ("On.", {"again": True, "stop": ("none",)}, ["turn number 6......"]),
        ):
            given = await at.says(words, max_tokens=60, **changes)
            assert sorted(choice.content for choice in given.choices) == turns
        assert (first.policy_version, at.episode.turns) == (3, 6)
        assert [strand.cause for strand in at.episode.strands[1:]] == ["again", "again", "again", "sub_agent", "again"]
        counted = await at.says("Go. | =1 | On.", counts=True)
        assert (len(counted.prompt) > len(first.prompt), counted.choices, at.episode.turns) == (True, (), 6)


async def test_requests_at_once_that_go_on_from_one_turn_are_two_sequences() -> None:
    async with agent() as at, trio.open_nursery() as nursery:
        await at.says("Go.")
        for text in ("On.", "Stop."):
            nursery.start_soon(at.rollout.answer, at.asked(f"Go. | =1 | {text}", max_tokens=40))
        await trio.sleep(3)
        first, second = at.episode.strands
        assert (len(first.turns), len(second.turns), second.cause) == (2, 1, "rewrite")


async def test_the_second_of_several_turns_is_no_turn_of_an_earlier_process() -> None:
    kept: list[CompletedTurn] = []
    async with agent(kept) as at:
        for _ in range(2):
            await at.says("Go.")
    async with agent(list(kept)) as at:
        assert len((await at.says("Go.", count=2, max_tokens=60)).choices) == 2
        assert len(at.engine.requests) == 1


@pytest.mark.parametrize("stop", [(), ("number",), ("1.",)])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_turn_that_is_cut_is_trained_and_taken_up_as_far_as_it_was_written(
    stop: tuple[str, ...], streams: bool
) -> None:
    kept: list[CompletedTurn] = []
    async with agent(kept) as at:
        asked = at.asked("Go.", stop=stop, streams=streams)
        given = await at.rollout.answer(asked)
        while not given.done:
            given = await at.rollout.answer(TurnAsked("", asked.ask, follows=True))
        (choice,) = given.choices
        assert (choice.content, choice.finish) == ("turn number 1.".partition(stop[0] if stop else "!")[0], "stop")
        at.texts.append(choice.content)
        await at.says("Go. | =1 | On.")
        assert at.where == ("1rewrite" if stop else "0")
        written = at.episode.transcript
    async with agent(list(kept)) as at:
        assert at.episode.transcript == written
        again = await at.rollout.answer(at.asked("Go.", stop=stop))
        assert (again.choices[0].content, again.choices[0].finish) == (choice.content, choice.finish)
        assert np.array_equal(again.choices[0].tokens, choice.tokens)


async def test_messages_that_leave_no_room_end_nothing_and_turns_that_are_used_up_end_the_rollout() -> None:
    async with agent(longest=90, turns=3) as at:
        await at.says("Go.", **NONE)
        for words in ("x" * 90, f"Go. | =1 | {'x' * (90 - len(at.episode.tokens) - 3)}"):
            assert (await at.says(words, **NONE)).refusal == "overflow"
            assert (at.episode.ended, at.rollout.overflowed) == (None, True)
        (last,) = (await at.says(f"Go. | =1 | {'x' * (90 - len(at.episode.tokens) - 4)}", **NONE)).choices
        assert last.finish == "length"
        assert (at.episode.ended, at.episode.budget) == ("truncated", 0)
    async with agent(turns=2) as at:
        assert (await at.says("Go.")).choices
        assert (await at.says("Other.")).choices
        ended = await at.says("Go. | =1 | On.")
        assert (ended.refusal, at.episode.ended, at.episode.turns) == ("ended", "turn_limit", 2)
    async with agent(most=20) as at:
        assert (await at.says("Go.")).choices
        over = await at.says("Go. | =1 | On.")
        assert (over.refusal, at.episode.ended) == ("overflow", "truncated")


async def test_an_agent_that_is_started_again_after_a_cut_reply_gets_its_turns_in_their_order() -> None:
    async with agent() as at:
        await at.says("Go.")
        await at.says("Go.")
        assert not at.rollout.replay_cut_replies()
        asked = at.asked("Other.", streams=True)
        assert not (await at.rollout.answer(asked)).done
        await trio.sleep(2)
        assert at.rollout.cut
        assert not at.rollout.replay_cut_replies(), "the agent may have left by itself"
        at.rollout.disturbed.set()
        assert at.rollout.replay_cut_replies()
        texts = [(await at.says(words)).choices[0].content for words in ("Go.", "Go.", "Other.", "Go.")]
        assert texts == ["turn number 1.", "turn number 2..", "turn number 3...", "turn number 4...."]
        assert not at.rollout.replay_cut_replies()


@asynccontextmanager
async def session(
    told: list[bool], sender: str = "gateway.0", **asked: Any
) -> AsyncIterator[tuple[Any, Episode, Sessions]]:
    """A session that has a turn; ``told`` whether its rollout was kept."""
    served, engine = ServedRollouts(0), Engine()
    loop = AgentLoop(SimpleNamespace(now=trio.current_time), CHAT, engine, None)  # type: ignore[arg-type]
    sessions = Sessions(loop, served, structlog.get_logger())
    episode = Episode(builders.request(sampling=Sampling(1.0, 5000, 20)), CHAT, 900, begun=False)

    async def run() -> None:
        told.append(await sessions.run(episode, "prompt", 60, "[]"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        given = await sessions.answer(SessionAsked("start", seconds=5, **asked), sender)
        assert (await served.answer(TurnAsked(given.key, "a", messages=(Said("user", "Go."),)))).choices
        yield given, episode, sessions


@pytest.mark.parametrize("by_agent", [False, True])
async def test_the_reward_of_a_session_has_a_key_of_its_own(by_agent: bool) -> None:
    told: list[bool] = []
    async with session(told) as (given, episode, sessions):
        for key, allowed in ((given.key, by_agent), (given.reward_key, True)):
            reward = SessionAsked("reward", key, reward=0.5, by_agent=by_agent)
            assert (await sessions.answer(reward, "gateway.0")).refusal == ("" if allowed else "key")
        assert given.reward_key != given.key
        assert not (await sessions.answer(SessionAsked("end", given.key), "gateway.0")).refusal
        await trio.sleep(1)
        outcome = outcome_of(episode.transcript)
        assert (told, outcome and outcome.reward) == ([True], 0.5)
        assert (await sessions.answer(SessionAsked("reward", given.reward_key), "gateway.0")).refusal == "ended"


@pytest.mark.parametrize(("opens", "lost", "kept"), [(True, "gateway.1", False), (True, "gateway.0", True), (False, "gateway.1", True)])  # fmt: skip
async def test_a_gateway_that_is_lost_takes_the_sessions_of_its_own_requests_with_it(
    opens: bool, lost: str, kept: bool
) -> None:
    told: list[bool] = []
    async with session(told, "gateway.1", opens=opens) as (given, _, sessions):
        sessions.gateway_lost(lost)
        await trio.sleep(1)
        assert told == ([] if kept else [False])
        if kept:
            for what, key in (("reward", given.reward_key), ("end", given.key)):
                assert not (await sessions.answer(SessionAsked(what, key), "gateway.1")).refusal  # type: ignore[arg-type]


async def test_a_rollout_that_ends_while_long_messages_are_read_refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "LONG_TEXT", 3)
    async with agent() as at:
        await at.says("Go.")
        real = trio.to_thread.run_sync

        async def ends(*given: Any) -> Any:
            at.rollout.conclude()
            return await real(*given)

        monkeypatch.setattr(trio.to_thread, "run_sync", ends)
        assert (await at.says("Other.")).refusal == "ended"


def test_a_key_names_the_replica_that_made_it() -> None:
    assert [generator_of(key_for(number)) for number in (0, 7, 12, 12345678)] == [0, 7, 12, 12345678]
    others = (
        "",
        "sk-rollout-",
        "sk-rollout--x",
        "12-x",
        "sk-rollout-a-x",
        "sk-rollout-\u0663-x",
        "sk-rollout-123456789-x",
    )
    assert {generator_of(key) for key in others} == {None}
    assert key_for(1) != key_for(1)
