"""The tree of tokens against a model of plain lists: whatever is asked, written, cut and taken up again.

Messages and turns are letters, so that the same words come back often, at many places of the tree.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import wait_all_tasks_blocked

from actors.rollout_generator.turns import NoRoom, RolloutOver, TurnWriter
from agent_rl.messages import CompletedTurn, PolicyVersion, Sampling
from agent_rl.rollout.conversation import Conversation, Message
from agent_rl.rollout.episode import Episode
from agent_rl_contract import builders

ROLES = {"user": 1, "tool": 2, "assistant": 8}
END, TURN = 9, 8


class Chat:
    """A chat format and a speech of letters. A model may write each letter in two ways, as tokenizers have them."""

    prefill, stop_tokens = "", frozenset({END})

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(token % 128) for token in tokens)

    turn_text = decode

    def later(self, messages: Any, turn: Any = None) -> list[int]:
        return [token for each in messages for token in (ROLES[each.role], *map(ord, each.content), END)] + [TURN]

    opening = later


class Place(NamedTuple):
    """Where messages are said: the model was asked, or its turn has ended."""

    talk: int
    said: tuple[Any, ...]
    row: int
    length: int
    asks: bool


class Way(NamedTuple):
    """What messages do: go on in ``row``, or (with a cause) begin one with its first ``shared`` tokens; None: begin."""

    keys: tuple[Any, ...]
    given: list[int]
    said: Any
    row: int | None = None
    shared: int = 0
    cause: str | None = None


@dataclass
class Row:
    """A sequence: tokens with whether the model wrote them, their log-probabilities, epochs, versions and rows."""

    tokens: list[tuple[Any, ...]]
    shared: int
    parent: int = 0
    cause: str | None = None
    turns: list[int] = field(default_factory=list)
    side: bool = False

    @property
    def ids(self) -> list[int]:
        return [token[0] for token in self.tokens]


@dataclass
class Model:
    """A rollout as plain lists."""

    most: int
    longest: int
    max_turns: int
    rows: list[Row] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    replies: list[tuple[int, str, str]] = field(default_factory=list)
    writing: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By row: the room of a turn under way, and whether it is limited."""
    ended: str | None = None

    @property
    def left(self) -> int:
        return self.most - sum(len(row.tokens) - row.shared for row in self.rows)

    def nearest(self, tokens: list[int]) -> tuple[int, int]:
        """The first of the rows that begin with the most of the tokens, and how many."""
        best = 0, -1
        for number, row in enumerate(self.rows):
            common = 0
            while common < min(len(tokens), len(row.ids)) and tokens[common] == row.ids[common]:
                common += 1
            if common > best[1]:
                best = number, common
        return best

    def way(self, talk: int, given: Any, cause: str) -> Way:
        keys = tuple((each.role, each.same or each.content) for each in given)
        places = [each for each in self.places if each.talk == talk]
        newest = {each.row: each for each in places}
        known = [each for each in places if each.said == keys[: len(each.said)]]
        fits = [each for each in known if not each.asks or each.said == keys]
        best = max(fits, key=lambda each: (len(each.said), newest[each.row] is each, each.length), default=None)
        rest = given if best is None else given[len(best.said) :]
        if best is None:
            whole = Chat().opening(given)
            if not places and not talk:
                return Way(keys, whole, ())
        elif not best.asks and newest[best.row] is best:
            return Way(keys, Chat().later(rest), rest, best.row, best.length)
        else:
            whole = self.rows[best.row].ids[: best.length] + (Chat().later(rest) if rest else [])
        if not places:
            why = "sub_agent"
        elif cause != "side_call" and best is not None and best.asks:
            why = "again"
        else:
            why = "rewrite" if known and cause != "side_call" else cause
        row, shared = self.nearest(whole)
        return Way(keys, whole[shared:], rest, row, shared, why)

    def way_of_tokens(self, tokens: list[int]) -> Way:
        if not self.rows:
            return Way((tuple(tokens),), tokens, ())
        row, shared = self.nearest(tokens)
        newest = {each.row: each for each in self.places if not each.talk}.get(row)
        goes_on = newest is not None and not newest.asks and shared == newest.length < len(tokens)
        cause = None if goes_on else "again" if shared == len(tokens) else "rewrite"
        return Way((tuple(tokens),), tokens[shared:], (), row, shared, cause)

    def begins(self, way: Way, talk: int, limit: int | None, policy: tuple[int, int], *, side: bool) -> str | int:
        """The row in which a turn after this is written now, or why none is."""
        if self.ended:
            return "over"
        if len(self.texts) + len(self.writing) >= self.max_turns:
            self.ended = None if self.writing else "turn_limit"
            return "waits" if self.writing else "over"
        left = self.left - (0 if way.row is None else len(way.given))
        in_row = self.longest - way.shared - len(way.given)
        room = min(in_row, left - sum(room for room, _ in self.writing.values()))
        wanted = left - sum(room for room, limited in self.writing.values() if limited) if limit is None else limit
        if not room >= min(wanted, in_row, left) > 0:
            if left > 0 >= in_row:
                return "room"
            self.ended = None if self.writing else "prompt_too_long" if way.row is None else "truncated"
            return "waits" if self.writing else "over"
        if way.row is None:
            self.rows.append(Row([(token, 0, 0.0, *policy, -1) for token in way.given], len(way.given)))
        elif way.cause is not None:
            parent = self.rows[way.row]
            self.rows.append(Row(parent.tokens[: way.shared], way.shared, way.row, way.cause))
        number = len(self.rows) - 1 if way.row is None or way.cause is not None else way.row
        row = self.rows[number]
        row.tokens += [(token, 0, 0.0, *policy, number) for token in way.given] if way.row is not None else []
        row.side = row.side if row.turns else side
        self.replies += [(len(self.texts), each.role, each.content) for each in way.said]
        self.writing[number] = (room, False) if limit is None else (min(room, limit), limit < room)
        self.places.append(Place(talk, way.keys, number, len(row.tokens), asks=True))
        return number

    def wrote(self, number: int, way: Way, talk: int, turn: Any, *, stopped: bool, cut: str) -> None:
        """A turn is written: (token, log-probability, epoch, version) each. ``cut``: it may not be continued."""
        row, (_, limited) = self.rows[number], self.writing.pop(number)
        row.tokens += [(token, 1, logprob, epoch, version, number) for token, logprob, epoch, version in turn]
        self.texts.append(Chat().decode([each[0] for each in turn if each[0] != END]))
        row.turns.append(len(self.texts))
        if not stopped and cut != "cut" and not limited:
            self.ended = "truncated"
        if stopped and not cut:
            said = (*way.keys, ("assistant", turn_message(self.texts[-1]).same))
            self.places.append(Place(talk, said, number, len(row.tokens), asks=False))

    @property
    def trained(self) -> set[int]:
        """The rows of which turns are trained: no side calls, but for those of which a row that goes on shares a turn."""
        task = [row for row in self.rows if row.turns and not row.side]
        went_on = {
            row.parent for row in task if any(each[1] and each[-1] == row.parent for each in row.tokens[: row.shared])
        }
        return {number for number, row in enumerate(self.rows) if not task or not row.side or number in went_on}


def turn_message(text: str) -> Message:
    """A turn, which is recognised by its words without the space around them."""
    return Message("assistant", text, f"={text.strip()}")


class Hand:
    """In place of the agent loop: writes each turn as it is told, when it is told."""

    def __init__(self) -> None:
        self.policy = PolicyVersion(0, 0)

    async def write(self, episode: Episode, strand: Any, watch: Any) -> Any:
        request = watch.request
        request.strand = strand
        await request.goes_on.wait()
        stopped = len(request.tokens) <= strand.room
        tokens = request.tokens[: strand.room]
        count = len(tokens)
        logprobs, policies = request.logprobs[:count], request.policies[:count]
        turn = np.array(tokens, np.int32), np.array(logprobs, np.float32), np.array(policies, np.int32)
        assert episode.turn_fault(*turn, stopped=stopped, stop=Chat.stop_tokens, strand=strand) == ""
        if request.cut == "cut":  # before its end, as by a stop string in a stream
            strand.room, strand.limited, stopped = count, True, False
        request.turn, request.stopped = turn, stopped
        return turn, stopped


MESSAGES = st.builds(Message, st.sampled_from(["user", "user", "tool"]), st.sampled_from(["a", "b", "ab"]), st.just(""))


MOST, LONGEST, TURNS = map(st.sampled_from, ([12, 40, 200], [9, 25, 90], [2, 6, 40]))


class Tree(RuleBasedStateMachine):
    """An agent at the gateway, and a loop with a helper: what they ask for goes on, branches, or leaves no room."""

    @initialize(most=MOST, longest=LONGEST, turns=TURNS)
    def begin(self, most: int, longest: int, turns: int) -> None:
        self.request = builders.request(sampling=Sampling(1.0, most, turns))
        self.model, self.hand = Model(most, longest, turns), Hand()
        self.histories: list[list[tuple[Message, ...]]] = [[()], [()]]
        self.kept: list[CompletedTurn] = []
        self.read: list[list[int]] = []
        self.undisturbed: dict[int, Any] = {0: deepcopy((self.model, self.histories))}
        self.starts()

    def starts(self) -> None:
        self.overlap = False
        self.episode = Episode(self.request, Chat(), self.model.longest, begun=False)  # type: ignore[arg-type]
        self.writer = TurnWriter(self.hand, self.episode)  # type: ignore[arg-type]
        self.talks = [Conversation(self.episode, Chat())]

    def asked(self, talk: int, plan: Any, way: Any, data: st.DataObject, limit: int | None, *, side: bool) -> Any:
        text = data.draw(st.sampled_from(["a", "b", " a", "abb", ""]))
        tokens = [*(ord(each) + data.draw(st.sampled_from([0, 128])) for each in text), END]
        version = data.draw(st.integers(self.hand.policy.version, self.hand.policy.version + 2))
        swap = data.draw(st.integers(0, len(tokens)))
        return SimpleNamespace(
            talk=talk, plan=plan, way=way, limit=limit, side=side, tokens=tokens, strand=None, goes_on=trio.Event(),
            cut=data.draw(st.sampled_from(["", "", "", "", "", "", "cut", "found"])), ended="", turn=None, stopped=False,
            logprobs=[-(number + 1) / 8 - len(self.model.texts) for number in range(len(tokens))],
            policies=[[1, version + (number >= swap)] for number in range(len(tokens))],
        )  # fmt: skip

    async def writes(self, request: Any) -> None:
        watch = SimpleNamespace(cut_at="b" if request.cut == "found" else "", request=request)
        try:
            written = await self.writer.write(
                self.talks[request.talk], request.plan, max_tokens=request.limit, watch=watch, said=turn_message,
                side=request.side,
            )  # fmt: skip
        except (NoRoom, RolloutOver) as error:
            request.ended = "room" if isinstance(error, NoRoom) else "over"
            return
        if self.episode.ended is None and len(self.talks) == 1:
            self.read.append(list(self.episode.tokens_of(written.strand)))
            seconds = 1.0 + len(self.kept) - self.episode.seconds
            self.kept.append(self.episode.complete(seconds, written.strand, written.place, written.given))

    def begins(self, request: Any) -> Any:
        """Whether the request's turn begins, in the model and in the tree."""
        model, policy, way = self.model, self.hand.policy, request.way()
        found = model.begins(way, request.talk, request.limit, (policy.epoch, policy.version), side=request.side)
        assert found == (request.ended or ("waits" if request.strand is None else request.strand.number)), way
        if isinstance(found, int):
            assert (request.strand.room, request.strand.limited) == model.writing[found]
            request.row, request.way = found, lambda: way
        return found

    async def all_at_once(self, requests: list[Any], order: list[int]) -> None:
        async with trio.open_nursery() as nursery:
            under_way, waiting = [], []
            for request in requests:
                nursery.start_soon(self.writes, request)
                await wait_all_tasks_blocked()
                found = self.begins(request)
                under_way += [request] if isinstance(found, int) else []
                waiting += [request] if found == "waits" else []
            while under_way:
                request = under_way.pop(order.pop() % len(under_way))
                request.goes_on.set()
                await wait_all_tasks_blocked()
                tokens, logprobs, policies = (each.tolist() for each in request.turn)
                turn = [
                    (token, logprob, *policy) for token, logprob, policy in zip(tokens, logprobs, policies, strict=True)
                ]
                ends = {"stopped": request.stopped, "cut": request.cut}
                self.model.wrote(request.row, request.way(), request.talk, turn, **ends)
                for later in tuple(waiting):
                    found = self.begins(later)
                    under_way += [later] if isinstance(found, int) else []
                    waiting = waiting if found == "waits" else []

    @precondition(lambda self: self.model.ended is None)
    @rule(
        data=st.data(), helper=st.integers(0, 5), count=st.sampled_from([1, 1, 1, 2]),
        limit=st.sampled_from([None, None, 1, 2, 4]), cause=st.sampled_from(["sub_agent", "compaction", "side_call"]),
    )  # fmt: skip
    def says(self, data: st.DataObject, helper: int, count: int, limit: int | None, cause: Any) -> None:
        """Messages of any history up to any place, and new ones after it."""
        if helper == 5 and self.model.rows and len(self.talks) == 1:
            self.talks.append(Conversation(self.episode, Chat(), "sub_agent"))
        talk = helper % len(self.talks)
        requests = []
        for _ in range(count):
            history = data.draw(st.sampled_from([*self.histories[talk], *3 * self.histories[talk][-1:]]))
            kept = history if data.draw(st.integers(0, 2)) else history[: data.draw(st.integers(0, len(history)))]
            given = (*kept, *data.draw(st.lists(MESSAGES, min_size=not kept, max_size=2)))
            plan, way = partial(self.talks[talk].plan, given, cause), partial(self.model.way, talk, given, cause)
            requests.append(self.asked(talk, plan, way, data, limit, side=cause == "side_call"))
            requests[-1].messages = given
        self.plays(requests, data)

    @precondition(lambda self: self.model.ended is None and self.model.rows)
    @rule(data=st.data(), more=st.lists(st.sampled_from([ord("a"), ord("b"), TURN]), max_size=2))
    def says_tokens(self, data: st.DataObject, more: list[int]) -> None:
        """Tokens of any sequence up to any place, and new ones after it."""
        ids = data.draw(st.sampled_from(self.model.rows)).ids
        tokens = [*(ids[: data.draw(st.integers(1, len(ids)))] if data.draw(st.booleans()) else ids), *more]
        plan, way = partial(self.talks[0].plan_tokens, tokens), partial(self.model.way_of_tokens, tokens)
        request = self.asked(0, plan, way, data, None, side=False)
        request.messages = ()
        self.plays([request], data)

    def plays(self, requests: list[Any], data: st.DataObject) -> None:
        self.hand.policy = PolicyVersion(1, self.hand.policy.version + data.draw(st.integers(0, 2)))
        order = [data.draw(st.integers(0, 1)) for _ in requests]
        trio.run(self.all_at_once, requests, order)
        for request in requests:
            if request.turn is not None and request.messages:
                text = Chat().decode([token for token in request.turn[0].tolist() if token != END])
                self.histories[request.talk].append((*request.messages, turn_message(text.strip())))
        self.overlap = self.overlap or len(requests) > 1
        if not self.overlap and self.model.ended is None:
            self.undisturbed[len(self.model.texts)] = deepcopy((self.model, self.histories))

    @precondition(lambda self: self.kept and len(self.talks) == 1)
    @rule(data=st.data())
    def resumes(self, data: st.DataObject) -> None:
        """Another process takes the turns up to any one in, and goes on as if nothing had happened.

        Turns that were written at once are sequences in the order of their ends there, after the very same tokens.
        """
        at = data.draw(st.integers(1, len(self.kept)))
        before, kept = self.episode, self.kept[:at]
        self.starts()
        assert self.episode.resume(kept) == ""
        assert [strand.whole[:length] for _, strand, length in self.episode.resumed] == self.read[:at]
        if at not in self.undisturbed:
            self.talks, self.writer, self.episode, self.overlap = [], None, before, True
            self.model.ended = "given up"
            return
        assert self.episode.seconds == float(at)
        self.kept, self.read = kept, self.read[:at]
        self.model, self.histories = deepcopy(self.undisturbed[at])
        self.undisturbed = {count: each for count, each in self.undisturbed.items() if count <= at}
        for turn, strand, length in self.episode.resumed:
            self.talks[0].resume(turn, strand, length, turn_message(self.episode.text_of(turn.written)))

    @precondition(lambda self: self.model.ended)
    @rule(most=MOST, longest=LONGEST, turns=TURNS)
    def another(self, most: int, longest: int, turns: int) -> None:
        self.begin(most, longest, turns)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model") or self.model.ended == "given up":
            return
        assert self.episode.ended == self.model.ended
        if self.model.rows:
            self.is_trained()
        if self.model.rows and self.model.ended is None:
            self.holds()

    def holds(self) -> None:
        model, episode = self.model, self.episode
        assert [each.ids for each in model.rows] == [list(episode.tokens_of(each)) for each in episode.strands]
        assert [each.turns for each in model.rows] == [each.turns for each in episode.strands]
        left = [min(model.left, model.longest - len(row.tokens)) for row in model.rows]
        assert [episode.budget_of(each) for each in episode.strands] == left
        assert episode.lengths == (model.rows[0].shared, model.most - model.left)
        assert [(each.turn, each.role, each.content) for each in episode.transcript.replies] == model.replies

    def is_trained(self) -> None:
        model, trained = self.model, self.model.trained
        made = self.episode.trajectory(generator="g", seconds=0.0)
        assert (made.transcript.texts, made.status) == (tuple(model.texts), model.ended or "failed")
        assert (made.prompt_length, made.response_length) == (model.rows[0].shared, model.most - model.left)
        rows = [(number, row) for number, row in enumerate(model.rows) if len(row.tokens) > row.shared or not number]
        own = [(*token[1:-1], number) for number, row in rows for token in row.tokens[row.shared :]]
        body = made.unpack()
        assert [(each.tokens.tolist(), each.shared) for each in body.sequences] == [(r.ids, r.shared) for _, r in rows]
        assert body.branches[:, 0].tolist() == [row.parent for _, row in rows[1:]]
        assert [(each.cause, [*each.turns]) for each in made.branches] == [
            (row.cause, row.turns) for _, row in rows[1:]
        ]
        assert body.loss_mask.tolist() == [mask and number in trained for mask, *_, number in own]
        assert body.logprobs.tolist() == [logprob for _, logprob, *_ in own]
        assert body.policies.tolist() == [[epoch, version] for _, _, epoch, version, _ in own]
        versions = [version for mask, _, _, version, number in own if mask and number in trained]
        assert (made.oldest, made.newest) == ((min(versions), max(versions)) if versions else (None, None))
        out = sum(mask for mask, *_, number in own if number not in trained)
        assert made.written == sum(mask for mask, *_ in own) == body.loss_mask.sum() + out
        assert made.excluded == ({"side_call": out} if out else {})


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
