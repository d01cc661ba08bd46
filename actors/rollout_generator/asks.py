"""Requests of an agent for turns: the parts of what is being written for one, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import trio

from actors.rollout_generator.agent_loop import Watch
from agent_rl.messages import TurnAsked, TurnGiven, TurnPart
from agent_rl.rollout.parsing import begun
from agent_rl.rollout.said import Spoken, spoken_so_far

if TYPE_CHECKING:
    from agent_rl.messages import Float32Vector, Int32Matrix, Int32Vector
    from agent_rl.rollout.prompts import ChatFormat

PART_SECONDS = 0.02
"""The least between two replies with parts of one stream: what was written meanwhile goes together."""


@dataclass(eq=False)
class Ask:
    """A request: its parts, and its answer once it is there. ``digest``: of its messages; ``bounds``: what ends it."""

    digest: bytes
    bounds: tuple[int, int, tuple[str, ...]]
    parts: list[TurnPart] = field(default_factory=list)
    prompt: Sequence[int] = ()
    watches: list[TurnWatch] = field(default_factory=list)
    told_at: float = -inf
    """When parts were told last."""
    given: TurnGiven | None = None
    cut: bool = False
    """A stream of it was begun, and its end is not told."""
    done: trio.Event = field(default_factory=trio.Event)
    _news: trio.Event = field(default_factory=trio.Event)

    def part(self, part: TurnPart) -> None:
        """Tell a part that no engine has written."""
        self.parts.append(part)
        self.tell()

    def tell(self) -> None:
        """Something new is there."""
        self._news.set()
        self._news = trio.Event()

    def end(self, given: TurnGiven) -> None:
        """Give the answer."""
        self.given = given
        self.done.set()
        self.tell()

    async def answer(self, asked: TurnAsked) -> TurnGiven:
        """The answer, or parts of it."""
        streams, count = asked.streams or asked.follows, asked.after
        if not streams:
            await self.done.wait()
        elif asked.follows:
            with trio.move_on_at(self.told_at + PART_SECONDS):
                await self.done.wait()
            while self.given is None and len(self.read()) <= count:
                await self._news.wait()
        parts = tuple(self.read()[count:]) if streams else ()
        self.told_at = trio.current_time() if parts else self.told_at
        self.cut = streams and self.given is None
        if self.given is None:
            return TurnGiven(done=False, parts=parts, prompt=np.array(self.prompt, dtype=np.int32))
        given = self.given
        return TurnGiven(True, given.refusal, given.why, parts, given.prompt, given.choices, given.policy_version)

    def read(self) -> list[TurnPart]:
        """All parts that are there by now."""
        for watch in self.watches:
            watch.read()
        return self.parts


class TurnWatch(Watch):
    """Sees one turn being written: tells parts of it, and cuts it at a stop string."""

    def __init__(self, chat: ChatFormat, ask: Ask, choice: int, stop: Sequence[str], *, listens: bool = True) -> None:
        """``listens``: parts are wanted while the turn is written."""
        super().__init__(chat)
        self._ask, self._choice, self._stop = ask, choice, stop
        self.listens = listens or bool(stop)
        self._known = 0
        """How many pieces of what was told were read."""
        self._shown = Spoken("")
        self._whole: Spoken | None = None
        ask.watches.append(self)

    def began(self, prompt: Sequence[int]) -> None:
        """The prompt; of several turns of a request it is the same."""
        self._ask.prompt = prompt

    def wrote(self, tokens: Int32Vector, logprobs: Float32Vector, policies: Int32Matrix) -> None:
        """Take what was written. It is read when somebody asks, or at once where it may have to be cut."""
        if self.cut_at or self.failure or not len(tokens):
            return
        self._told.append((tokens, logprobs, policies))
        self._count += len(tokens)
        if self._stop:
            try:
                self.read()
            except Exception as error:  # noqa: BLE001 - the engine must not hear of it
                self.failure = error
            if self.cut_at or self.failure:
                self.scope.cancel()
        self._ask.tell()

    def read(self) -> None:
        """Make parts of what is certain of it; of a whole turn, of all."""
        if new := self._told[self._known :]:
            self._known = len(self._told)
            tokens, logprobs, _ = (np.concatenate(each) for each in zip(*new, strict=True))
            self._unfolding.add([token for token in tokens.tolist() if token not in self._chat.stop_tokens])
            text = self.before_stop(self._unfolding.text)
            self._part(spoken_so_far(self._chat, self._held_back(text)), tokens, logprobs)
        if (whole := self._whole) is not None:
            self._whole = None
            if whole.content != self._shown.content or whole.reasoning != self._shown.reasoning:
                none = np.zeros(0, dtype=np.int32)
                self._part(whole, none, none.astype(np.float32))

    def finished(self, spoken: Spoken) -> None:
        """The whole turn, with the text that was held back."""
        self._whole = spoken

    def _part(self, now: Spoken, tokens: Int32Vector, logprobs: Float32Vector) -> None:
        content, reasoning = now.content[len(self._shown.content) :], now.reasoning[len(self._shown.reasoning) :]
        self._shown = now
        self._ask.parts.append(TurnPart(self._choice, content, reasoning, tokens, logprobs))

    def before_stop(self, text: str) -> str:
        """The text up to the first stop string, which is searched after the template's prefill."""
        start = len(self._chat.prefill)
        found = [(at, each) for each in self._stop if (at := text.find(each, start)) >= 0]
        if not found:
            return text
        at, self.cut_at = min(found)
        return text[:at]

    def _held_back(self, text: str) -> str:
        """Without the end that may begin a stop string."""
        held = max((begun(text, each) for each in self._stop), default=0)
        return text if self.cut_at else text[: len(text) - held]
