"""The examples of turns that are answered: what the game asks of a model, and both of them run for real, shortened."""

import json
import random
import subprocess
import sys
from itertools import islice, product
from pathlib import Path

import pytest
import trio

from agent_rl.config.plugins import resolve
from agent_rl.messages import Problem, Transcript

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SHOWN = {"doors": EXAMPLES / "doors", "expressions": EXAMPLES / "quickstart"}
GAMES = 2000


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch):
    for folder in SHOWN.values():
        monkeypatch.syspath_prepend(folder)


def test_each_example_is_short():
    for name, folder in SHOWN.items():
        lines = [line for line in (folder / f"{name}.py").read_text().splitlines() if line.strip()]
        assert len(lines) <= 40, name


def games() -> list[Problem]:
    source = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES).problems()
    return [source.evaluation(number) for number in range(GAMES)]


def test_no_player_who_ignores_the_replies_wins_half_of_the_games():
    """He sees the first room; what he does in the others can be any plan, but the same whatever they show."""
    wins = dict.fromkeys(product(("red", "blue", "green"), repeat=2), 0)
    for game in games():
        safe = [door for _, door, _ in game.payload["rooms"]]
        wins[tuple(safe[1:])] += 1  # the first room is passed by everybody
    assert sum(wins.values()) == GAMES
    assert max(wins.values()) / GAMES < 0.2


def test_the_game_is_won_by_who_reads_the_signs_and_ended_by_a_wrong_door():
    doors = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES)
    for game in games()[:50]:
        rooms = game.payload["rooms"]
        for passed, (seen, safe, _) in enumerate(rooms):
            words = seen.replace(",", "").replace(".", "").split()
            named = words[-1]
            assert safe == (named if words[-2] == "take" else next(door for door in words[1:3] if door != named))
            turns = tuple(door for _, door, _ in rooms[: passed + 1])
            answer = trio.run(doors.observe, game, Transcript(turns), b"", None)
            assert (answer is None) is (passed == 2)
            if answer is not None:
                assert answer.messages[0]["content"] == rooms[passed + 1][0]
            wrong = (*turns[:-1], "window")
            assert trio.run(doors.observe, game, Transcript(wrong), b"", None) is None
            assert not doors.judge_at_once(game, Transcript(wrong)).success
        assert doors.judge_at_once(game, Transcript(turns)).success


def test_most_players_that_are_shown_overlook_the_word_avoid():
    source = resolve("environment", "doors:Doors")(seed=0, base=EXAMPLES).problems()
    shown = list(islice(source.demonstrations(random.Random(0)), 500))
    avoided = [pair for each in shown for pair in zip(each.messages[::2], each.messages[1::2], strict=True)]
    obeyed = [
        said["content"] not in seen["content"].split("avoid")[1] for seen, said in avoided if "avoid" in seen["content"]
    ]
    assert 0.28 < sum(obeyed) / len(obeyed) < 0.42


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs(name, tmp_path):
    changes = {"run.directory": tmp_path / "run", "model.initialise.hidden_size": 32, "model.initialise.layers": 1}
    changes |= {"algorithm.groups_per_step": 2, "algorithm.samples": 4, "algorithm.keep": 2}
    changes |= {"algorithm.max_staleness": 4, "stages.0.steps": 2}
    rl, evaluations = (2, (1, 3)) if name == "doors" else (1, (2,))
    changes |= {f"stages.{rl}.steps": 1, **{f"stages.{number}.problems": 4 for number in evaluations}}
    command = [sys.executable, "-m", "actors.cli", "run", name]
    for key, value in changes.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["steps"] == 1
