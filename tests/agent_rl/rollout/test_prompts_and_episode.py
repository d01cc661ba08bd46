"""Conversations as tokens, and the agent loop: token in, token out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_rl.config.load import load_topology
from agent_rl.environments.base import Demonstration
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import PolicyVersion, Problem, Sampling
from agent_rl.models.model_files import ModelFiles
from agent_rl.models.plain_tokenizer import PlainTokenizer
from agent_rl.rollout.episode import Episode, RolloutTally
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import CHATML as CHATML_OF_OURS
from agent_rl.rollout.prompts import ChatFormat, PromptError, load_tokenizer
from agent_rl.rollout.supervised import demonstrated
from agent_rl_contract import builders
from tests.agent_rl.rollout.templates import FORGETTING, HERMES, LLAMA, MISTRAL, THINKING, chat_of, chat_with, turn

CALL = (
    '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(2+2)", "input": ""}}</tool_call>'
)
ANSWER = "<answer>\\boxed{4}</answer>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(build_tokenizer(), builders.environments())


@pytest.fixture(scope="module", params=["plain", "rstar2"])
def chatml(request: pytest.FixtureRequest) -> tuple[Any, ChatFormat]:
    return chat_with(CHATML, request.param)


QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "quickstart.toml"
FORGETS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1] | trim if m['role'] == 'assistant' else m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "prompts", "differs", "rewrites"),
    [
        (None, ["plain"], [], ""),
        (CHATML, ["plain", "rstar2"], [], ""),
        (CHATML_OF_OURS, ["rstar2"], [], ""),
        *((template, ["template"], [], "") for template in (HERMES, THINKING, LLAMA)),
        (MISTRAL, ["template"], [], "turn 1"),  # the list of tools moves to the last message
        (CHATML.replace("m['content']", "(m['content'] | trim)"), ["plain"], ["white space"], ""),
        (FORGETS, ["rstar2", "plain"], ["thinking", "white space"], "thinking before a call, turn 1"),
        (FORGETTING, ["template"], ["thinking"], "thinking before a call, turn 1"),
    ],
)
def test_what_a_template_changes_of_what_was_written_is_told_and_white_space_is_no_rewriting(
    template: str | None, prompts: list[str], differs: list[str], rewrites: str
) -> None:
    for prompt in prompts:
        own = template or build_tokenizer().chat_template
        _, chat = chat_of(own) if prompt == "template" else chat_with(own, prompt)
        found = chat.differences()
        assert [text.partition(" a call, turn 1, token ")[0].rpartition(" ")[0] for text in found] == differs
        assert rewrites in chat.rewriting()
        assert bool(rewrites) == bool(chat.rewriting())
        if template is FORGETS:
            built, given = found[0].split("the template gives")
            assert ("<think>" in built, "<think>" in given) == (True, False)


@pytest.mark.parametrize(
    ("named", "expected"), [(None, "the model's"), ("chatml", CHATML_OF_OURS), ("mine.jinja", "mine")]
)
def test_the_topology_may_name_another_template(tmp_path: Path, named: str | None, expected: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "the model's"
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "mine.jinja").write_text("mine")
    topology = load_topology(QUICKSTART, [f"model.chat_template={named}"] if named else [])
    assert load_tokenizer(tmp_path / "model", topology, tmp_path).chat_template == expected


@pytest.mark.parametrize("template", [None, CHATML_OF_OURS.replace("<|im_end|>", "<|end|>")])
def test_a_check_reads_the_prompt_that_a_generator_reads(tmp_path: Path, template: str | None) -> None:
    tokenizer = build_tokenizer(byte_fallback=True)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    tokenizer.chat_template = template or tokenizer.chat_template
    plain = PlainTokenizer.read(ModelFiles.read(tmp_path), template)
    environments = builders.environments("rstar2")
    problem = Problem("p", "Wie gro\u00df ist <|end|>?", "4", "arithmetic")
    read, used = (ChatFormat(each, environments).prompt_tokens(problem) for each in (plain, tokenizer))
    assert read == used


def test_the_rstar2_prompt_asks_for_what_the_paper_asks() -> None:
    tokenizer, chat = chat_with(CHATML, "rstar2")
    text = tokenizer.decode(chat.prompt_tokens(builders.problem()))
    for part in ("<reason>", "<tools>", "<tool_call>", "<answer>", "\\boxed{}", '"python_code_with_standard_io"'):
        assert part in text
    said = ({"role": "user", "content": builders.problem().text}, {"role": "assistant", "content": ANSWER})
    [(shown, _)] = demonstrated(chat, Demonstration(builders.problem(), said))
    assert tokenizer.decode(shown).startswith(text)  # demonstrations are of the same prompt


def test_stop_tokens_are_end_of_turn_and_end_of_sequence(chatml: tuple[Any, ChatFormat]) -> None:
    tokenizer, chat = chatml
    assert chat.stop_tokens == {tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "no chat template"),
        ("{{ messages[0]['content'] }}", "leaves out"),
        (CHATML_OF_OURS, r"'<\|im_end\|>.*, and the tokenizer has no such token: name a template"),
    ],
)
def test_a_tokenizer_without_a_template_for_all_turns_is_refused(template: str | None, said: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(PromptError, match=said):
        ChatFormat(tokenizer, builders.environments())


def test_an_episode_calls_a_tool_reads_and_answers(chat: ChatFormat) -> None:
    episode = Episode(builders.request(), chat)
    (call,) = episode.begin_calls(episode.append_turn(**turn(chat, CALL, version=3)))
    assert call == ParsedCall("python_code_with_standard_io", {"code": "print(2+2)", "input": ""})
    episode.append_tool_results(["4"], [builders.call()], PolicyVersion(1, 4))
    assert episode.begin_calls(episode.append_turn(**turn(chat, ANSWER, version=5))) == ()
    assert episode.ended == "finished"
    made = episode.trajectory(generator="g", seconds=1.0)
    assert (made.status, made.turns, len(made.transcript.calls)) == ("finished", 2, 1)
    response = chat.response_tokens(["4"])
    first = len(chat.encode(CALL)) + 1
    assert made.unpack().loss_mask.tolist() == [1] * first + [0] * len(response) + [1] * (
        made.response_length - first - len(response)
    )
    assert made.unpack().tokens[first : first + len(response)].tolist() == response
    assert [made.unpack().policies[i, 1] for i in (0, first, -1)] == [3, 4, 5]
    assert (made.unpack().logprobs[made.unpack().loss_mask == 0] == 0).all()
    assert made.transcript.text == f"{CALL}\n{ANSWER}"  # what the model wrote: tool responses are no part of it
    assert made.response_length == len(made.unpack().logprobs) == len(made.unpack().policies)


@pytest.mark.parametrize(
    ("sampling", "changes", "response", "ended"),
    [
        (Sampling(1.0, 400, 3), {"stopped": False}, None, "truncated"),
        (Sampling(1.0, 400, 1), {}, None, "turn_limit"),
        (Sampling(1.0, 40, 3), {}, "x" * 200, "truncated"),
    ],
)
def test_a_call_that_no_turn_can_follow_ends_the_rollout(
    chat: ChatFormat, sampling: Sampling, changes: dict[str, Any], response: str | None, ended: str
) -> None:
    episode = Episode(builders.request(sampling=sampling), chat)
    calls = episode.begin_calls(episode.append_turn(**{**turn(chat, CALL), **changes}))
    before = len(episode.tokens)
    if response is not None:
        episode.append_tool_results([response], [builders.call()], PolicyVersion(1, 0))
    assert (len(calls), episode.ended, len(episode.tokens)) == (response is not None, ended, before)
    assert len(episode.trajectory(generator="g", seconds=1.0).transcript.calls) == (response is not None)


def test_a_sequence_has_the_room_that_the_engine_has(chat: ChatFormat) -> None:
    prompt = len(chat.prompt_tokens(builders.problem()))
    wanted = builders.request(sampling=Sampling(1.0, 40, 3))
    for longest, budget in ((prompt + 100, 40), (prompt + 40, 40), (prompt + 39, 39), (prompt + 1, 1)):
        episode = Episode(wanted, chat, longest)
        assert (episode.budget, episode.ended) == (budget, None)
    for longest in (prompt, prompt - 1):
        episode = Episode(wanted, chat, longest)
        made = episode.trajectory(generator="g", seconds=0.0)
        assert (made.status, made.response_length, made.turns) == ("prompt_too_long", 0, 0)
        assert made.reason == f"the prompt of problem p0 has {prompt} of the {longest} tokens a sequence may have"


def test_only_what_was_truncated_says_that_its_prompt_was_long(chat: ChatFormat) -> None:
    longest = len(chat.prompt_tokens(builders.problem())) + 60
    for text, stopped, status in ((ANSWER, True, "finished"), (ANSWER, False, "truncated")):
        episode = Episode(builders.request(sampling=Sampling(1.0, 200, 3)), chat, longest)
        episode.begin_calls(episode.append_turn(**{**turn(chat, text), "stopped": stopped}))
        made = episode.trajectory(generator="g", seconds=0.0)
        assert made.status == status
        assert ("leaves 60 of 200 response tokens" in made.reason) is (status == "truncated")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"tokens": [9], "logprobs": [0.0]}, ""),
        ({"tokens": [5] * 59 + [9]}, ""),
        ({"tokens": [5] * 60, "stopped": False}, ""),
        ({"tokens": [5] * 7, "stopped": False, "room": 7}, ""),
        ({"policies": [[1, 4], [2, 0]]}, ""),
        ({"policies": [[1, 3], [1, 4]]}, ""),
        ({"tokens": []}, "0 tokens, where 1 to 60 were asked for"),
        ({"tokens": [5] * 60 + [9]}, "61 tokens, where 1 to 60 were asked for"),
        ({"room": 1}, "2 tokens, where 1 to 1 were asked for"),
        ({"tokens": [-1, 9]}, "the token -1"),
        ({"logprobs": [-0.5, float("nan")]}, "log-probabilities that are not finite"),
        ({"logprobs": [float("-inf"), -0.5]}, "log-probabilities that are not finite"),
        ({"logprobs": [-0.5]}, "shapes (2,), (1,) and (2, 2), not [n], [n] and [n, 2]"),
        ({"policies": [[0, 0]]}, "shapes (2,), (2,) and (1, 2), not [n], [n] and [n, 2]"),
        ({"tokens": [9, 6]}, "a turn with finish 'stop' that ends in the token 6, which is no stop token"),
        ({"tokens": [5] * 59, "stopped": False}, "a turn with finish 'length' and 59 tokens, where 60 were asked for"),
        ({"policies": [[1, 4], [1, 3]]}, "a turn whose versions fall"),
        ({"policies": [[2, 3], [1, 4]]}, "a turn whose versions fall"),
    ],
    ids=str,
)
def test_rubbish_of_an_engine_is_told_from_what_a_model_may_write(changes: dict[str, Any], fault: str) -> None:
    chat = SimpleNamespace(prompt_tokens=lambda _: [1, 2])
    episode = Episode(builders.request(), chat)  # type: ignore[arg-type]
    given = {"tokens": [5, 9], "stopped": True, "room": 0, **changes}
    count = len(given["tokens"])
    given = {"logprobs": [-0.5] * count, "policies": [[0, 0]] * count, **given}
    episode.strands[0].room = given["room"]
    turn = (
        np.array(given["tokens"], np.int32),
        np.array(given["logprobs"], np.float32),
        np.array(given["policies"], np.int32).reshape(-1, 2),
    )
    assert episode.turn_fault(*turn, stopped=given["stopped"], stop=frozenset({9})) == fault


@pytest.mark.parametrize(("left", "ended"), [(0, "truncated"), (1, None)])
def test_an_answer_that_leaves_the_model_no_token_ends_the_rollout(
    left: int, ended: str | None, chat: ChatFormat
) -> None:
    for longest in (None, len(chat.prompt_tokens(builders.problem())) + 30):
        episode = Episode(builders.request(sampling=Sampling(1.0, 40, 9)), chat, longest)
        episode.append_turn(**turn(chat, "1"))
        episode.give((), [5] * (episode.budget - left), PolicyVersion(0, 0))
        assert (episode.ended, episode.turns) == (ended, 1)


def test_prompts_that_leave_no_room_are_found_by_their_true_length(chatml: tuple[Any, ChatFormat]) -> None:
    _, chat = chatml
    problems = [Problem(f"p{n}", "x" * n, "4", "arithmetic") for n in (0, 10, 500, 501)]
    lengths = {problem.id: len(chat.prompt_tokens(problem)) for problem in problems}
    longest = lengths["p500"] + 1
    assert chat.too_long(problems, longest) == [(problems[3], lengths["p501"])]
    assert [problem.id for problem, _ in chat.too_long(problems, 1)] == [problem.id for problem in problems]
    assert chat.too_long([Problem("many bytes", "print(" * 100, "4", "arithmetic")], lengths["p0"] + 101) == []


def test_a_tally_counts_rollouts_and_calls(chat: ChatFormat) -> None:
    tally = RolloutTally()
    tally.add(builders.trajectory(builders.opened(), calls=(builders.call("malformed"), builders.call("success"))))
    tally.add(builders.trajectory(builders.opened(), status="truncated", calls=(builders.call("unknown_tool"),)))
    tally.add(builders.trajectory(builders.opened(), status="prompt_too_long"))
    assert (tally.rollouts, tally.by_status["truncated"], tally.by_status["prompt_too_long"]) == (3, 1, 1)
    assert (tally.by_outcome["malformed"], tally.by_outcome["unknown_tool"]) == (1, 1)
