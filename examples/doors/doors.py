"""A game whose every turn is answered: three rooms, each with a sign that names a door to take or to avoid."""

from __future__ import annotations

import random

from agent_rl.environments.base import ChatMessages, Context, Demonstration, Environment, Observation
from agent_rl.environments.tasks import DrawnTasks
from agent_rl.messages import Judgement, Problem, Transcript


def draw(rng: random.Random) -> Problem:
    """A game: of each room what is seen, the safe door, and the door that the sign names."""
    rooms = []
    for _ in range(3):
        doors, sign, named = rng.sample(("red", "blue", "green"), 2), rng.choice(("take", "avoid")), rng.randrange(2)
        safe = doors[named if sign == "take" else 1 - named]
        rooms.append([f"Doors: {doors[0]}, {doors[1]}. Sign: {sign} {doors[named]}.", safe, doors[named]])
    return Problem("", rooms[0][0], payload={"rooms": rooms})


def show(rng: random.Random) -> Demonstration:
    """A player, of whom most take the door that a sign names, whatever the sign says of it."""
    problem, messages = draw(rng), []
    for seen, safe, named in problem.payload["rooms"]:
        taken = safe if rng.random() < 0.35 else named
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": taken}]
        if taken != safe:
            break
    return Demonstration(problem, tuple(messages))


class Doors(Environment):
    """A wrong door ends the game; the reward is 1 for three right ones."""

    observes, lists_tools = True, False

    def __init__(self, *, seed: int, base: object) -> None:
        self.problems = lambda: DrawnTasks(seed, draw, show)

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": problem.text}]

    async def observe(
        self, problem: Problem, transcript: Transcript, state: bytes, context: Context
    ) -> Observation | None:
        passed, rooms = len(transcript.texts), problem.payload["rooms"]
        if passed == len(rooms) or transcript.texts[-1] != rooms[passed - 1][1]:
            return None
        return Observation([{"role": "user", "content": rooms[passed][0]}])

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        right = list(transcript.texts) == [safe for _, safe, _ in problem.payload["rooms"]]
        return Judgement(float(right), right)
