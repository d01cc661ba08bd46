"""Agents' own clients, unmodified, at a real gateway: each is served, and trained on the tokens that it was sampled.

Each script beside this file is a program of a user, in an environment that knows nothing of this project. The engine
writes what `TURNS` says, in a form that no client keeps: other white space and another order of keys in its calls, and
reasoning that most clients drop. All the same, a client that goes on with its history must continue the very tokens.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio

from agent_rl.rollout.keys import MODEL
from tests.actors.gateway.stand import stand

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-clients"
INSTALLED = (ENVIRONMENT / "installed").is_file()
pytestmark = pytest.mark.skipif(not INSTALLED, reason="no clients are here: make .venv-clients/installed")

LONGEST_SECONDS = 240.0
"""For all clients, on a busy machine. They take half a minute of processor time, most of it for imports."""

PARIS = '<tool_call>{"name": "weather", "arguments": {"days":2,   "city": "Paris"}}</tool_call>'
OSLO = '<tool_call>{"name":"weather","arguments":{"city":"Oslo","days":1}}</tool_call>'
BERN = '<tool_call>{"arguments": {"city": "Bern", "days": 1}, "name": "weather"}</tool_call>'
TURNS = (
    f"I look it up.\n{PARIS}",
    '<think>\nIt will clear up.\n</think>\n\nRain today, "sun" tomorrow.\n',
    f"{OSLO}\n{BERN}",
    "Dry in Oslo and in Bern.",
)
ANSWERS = ['Rain today, "sun" tomorrow.', "Dry in Oslo and in Bern."]
CALLS = [{"city": "Bern", "days": 1}, {"city": "Oslo", "days": 1}, {"city": "Paris", "days": 2}]

BASH = '<tool_call>{"name":"bash", "arguments": {"command":  "%s"}}</tool_call>'
COMMANDS = (
    f"I compute.\n{BASH % 'echo $((6 * 7)) > answer; cat answer'}",
    BASH % "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer",
)
FINAL = '<tool_call>{"name":"final_answer","arguments":{"answer":"%s"}}</tool_call>'
CODE = (
    "I ask.\n<code>\nprint(weather('Paris', 2))\n</code>",
    "<code>\nfinal_answer('Rain')\n</code>",
    "<code>\nfinal_answer('Dry')\n</code>",
)

TALKS = (
    "litellm_chat",
    "pydantic_ai_agent openai-chat",
    "pydantic_ai_agent openai-responses",
    "pydantic_ai_agent anthropic",
    "openai_agents chat_completions",
    "openai_agents responses",
    "anthropic_messages",
    "anthropic_tools",
    "openai_sync",
    "openai_async",
    "openai_streaming",
    "openai_responses",
)
"""The clients that ask both questions about the weather, and go on with their history. The slowest come first."""
SCRIPTS = {
    "mini_swe_agent": COMMANDS,
    **dict.fromkeys(TALKS, TURNS),
    "smolagents_agent tools": (TURNS[0], FINAL % "Rain", TURNS[2], FINAL % "Dry"),
    "smolagents_agent code": CODE,
}


@dataclass(frozen=True)
class Run:
    """A client's end, and what the rollout has. ``prompts``, ``written``: of each turn, as the engine had them."""

    status: int
    output: str
    errors: str
    prompts: list[list[int]]
    written: list[list[int]]
    strands: list[tuple[str, list[int]]]
    trained: list[int]
    text: str

    @property
    def seen(self):
        assert self.status == 0, f"{self.output}\n{self.errors}"
        return json.loads(self.output.splitlines()[-1])


async def run_all(folder: Path) -> dict[str, Run]:
    """Run the clients, three at a time."""
    turns = {name: iter(texts) for name, texts in SCRIPTS.items()}
    runs: dict[str, Run] = {}
    few = trio.CapacityLimiter(3)

    def script(_, request):
        return next(turns[request.rollout.partition("+")[0]], "One turn too many.")

    async def run(name: str) -> None:
        async with few, at.rollout() as (key, episode):
            episode.request = replace(episode.request, rollout=name)
            home = folder / name
            home.mkdir()
            client, *arguments = name.split()
            command = [ENVIRONMENT / "bin" / "python", HERE / f"{client}.py", *arguments]
            variables = {"PATH": os.environ["PATH"], "HOME": str(home), "AGENT_RL_MODEL": MODEL}
            variables |= {"OPENAI_BASE_URL": f"{at.url}/v1", "OPENAI_API_KEY": key}
            variables |= {"ANTHROPIC_BASE_URL": at.url, "ANTHROPIC_API_KEY": key}
            variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # otherwise it asks the internet, three times
            ended = await trio.run_process(
                command, cwd=home, env=variables, capture_stdout=True, capture_stderr=True, check=False
            )
            names = [name, *(f"{name}+{strand.number}" for strand in episode.strands[1:])]
            tokens = episode.trajectory(generator="g", seconds=0.0).unpack()
            trained = tokens.tokens[tokens.loss_mask == 1].tolist()
            runs[name] = Run(
                ended.returncode,
                ended.stdout.decode(),
                ended.stderr.decode(),
                [list(request.tokens) for request in at.engine.requests if request.rollout in names],
                [turn for each in names for turn in at.engine.written.get(each, [])],
                [(strand.cause, strand.turns) for strand in episode.strands],
                trained,
                at.engine.decode(trained),
            )

    with trio.fail_after(LONGEST_SECONDS):
        async with stand(folder, script) as at, trio.open_nursery() as nursery:
            for name in SCRIPTS:
                nursery.start_soon(run, name)
    return runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return trio.run(partial(run_all, tmp_path_factory.mktemp("clients")))


def in_order(calls):
    return sorted(calls, key=lambda call: call["city"])


@pytest.mark.parametrize("name", TALKS)
def test_a_client_calls_its_tool_and_gets_its_answers(runs, name):
    seen = runs[name].seen
    assert [answer.strip() for answer in seen["answers"]] == ANSWERS
    assert in_order(seen["calls"]) == CALLS
    if "pieces" in seen:
        assert "".join(seen["pieces"]).endswith(ANSWERS[1])
        assert len(seen["pieces"]) > 10  # the reply came bit by bit


@pytest.mark.parametrize("name", ["mini_swe_agent", *TALKS])
def test_a_history_that_comes_back_continues_the_very_tokens(runs, name):
    run, count = runs[name], len(SCRIPTS[name])
    assert [turns for _, turns in run.strands] == [[*range(1, count + 1)]], run.strands
    for before, written, after in zip(run.prompts, run.written, run.prompts[1:], strict=False):
        assert after[: len(before) + len(written)] == before + written


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "smolagents_agent code"])
def test_the_sampled_tokens_are_trained(runs, name):
    run = runs[name]
    assert len(run.written) == len(SCRIPTS[name])
    assert run.trained == [token for turn in run.written for token in turn]


def test_what_only_some_clients_show(runs):
    seen = runs["openai_sync"].seen
    assert (seen["finish"], seen["listed"]) == ("stop", [MODEL])
    streamed = runs["openai_streaming"]
    assert streamed.seen["tokens"] == streamed.trained
    assert streamed.seen["usage"] == len(streamed.written[-1])
    assert "".join(streamed.seen["pieces"]) == f"I look it up.{ANSWERS[0]}\n{ANSWERS[1]}"
    messages = runs["anthropic_messages"]
    assert messages.seen["stop"] == "end_turn"
    assert messages.seen["counted"] == len(messages.prompts[2])
    swe = runs["mini_swe_agent"].seen
    assert (swe["status"], swe["answers"], swe["file"]) == ("Submitted", ["42\n"], "42\n")


def test_smolagents_tells_its_calls_in_other_words(runs):
    run = runs["smolagents_agent tools"]
    assert (run.seen["answers"], in_order(run.seen["calls"])) == (["Rain", "Dry"], CALLS)
    # "Calling tools: [...]" stands for each turn with a call, so that each request changes what was said.
    assert [turns for _, turns in run.strands] == [[1], [2], [3], [4]]
    assert {cause for cause, _ in run.strands[1:]} == {"rewrite"}


def test_smolagents_code_ends_at_a_stop_string(runs):
    run = runs["smolagents_agent code"]
    assert (run.seen["answers"], run.seen["calls"]) == (["Rain", "Dry"], CALLS[2:])
    assert run.text == "".join(CODE)  # the tokens up to the stop string, and no token that ends a turn
    assert [turns for _, turns in run.strands] == [[1], [2], [3]]
    assert {cause for cause, _ in run.strands[1:]} == {"rewrite"}
