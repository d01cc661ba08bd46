"""The report of whole runs: its figures are the journal's, and whatever a run directory holds, it says so plainly."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.cli.main import main
from actors.roc_filter.replay import decode_stored
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans
from agent_rl.groups import instructions as group_instructions
from agent_rl.groups.measures import wilson_interval
from agent_rl.messages import ToolCallRecord
from agent_rl.observe.report import read_page, samples
from agent_rl.observe.report.charts import FATES
from agent_rl.observe.report.page import html
from agent_rl.observe.report.samples import calls_in, responses, split
from agent_rl.observe.words import clock, compact, duration, percent, spread, visible
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from agent_rl.records.run_directory import record_memory_kill
from agent_rl_contract import builders
from tests.agent_rl.records.journals import forget
from tests.agent_rl.records.report_runs import (
    AFTER,
    BEFORE,
    RL,
    SFT,
    Shown,
    SyntheticRun,
    metrics,
    played,
    report,
    trajectory,
    whole,
)
from tests.end_to_end.topologies import write_micro

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "&#60;b>",
    "a\x00b\x1b[31m",
    "\u202egnp.exe",
    "\ud800",
    "</pre></details></body></html>",
)
ROW_TIME = {"seconds": 9.0, "wall": 9.0}
CSS = files("agent_rl.observe.report").joinpath("web", "page.css")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a whole run, to be read."""
    return whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def page(directory: Path) -> Shown:
    return report(directory)


# Figures --------------------------------------------------------------------------------------------------------------


def test_the_figures_shown_are_the_journals(directory: Path, page: Shown) -> None:
    journal = Journal(directory / "journal.sqlite")
    shown = page.rows()
    for name, figures in zip(("before", "after"), journal.evaluations().values(), strict=True):
        for way in ("sampled", "greedy"):
            _, success, interval, trials, *_ = shown[f"{name}, {way}"]
            assert success == f"{100 * figures.ways()[way].success:.1f} %"
            assert trials == "4"
            low, high = wilson_interval(round(4 * figures.ways()[way].success), 4)
            assert interval == f"{100 * low:.1f} to {100 * high:.1f} %"
    balance = audit(directory)
    assert shown["trained"][0] == str(balance.trained) == "3"
    dropped = {words: row[0] for words, row in shown.items() if words.startswith("dropped")}
    assert dropped == {"dropped: every rollout right": "2", "dropped: every rollout wrong": "1"}
    titles = "\n".join(page.words())
    for index, step in enumerate(journal.steps()):
        low, high = wilson_interval(round(8 * step.figures.sampled.success), 8)
        share = f"{100 * step.figures.sampled.success:.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f} %, n = 8)"
        assert f"step {index + 1}: {share}" in titles
        assert f"step {index + 1}: of the policy {step.learner_figures.entropy:g} nats" in titles
    journal.close()


def test_the_divergence_from_the_reference_is_a_curve_where_there_is_one(tmp_path: Path, page: Shown) -> None:
    penalized = report(played(tmp_path, (RL, *(([[1.0, 0.0]], {"kl": kl}) for kl in (0.0, 0.125)))))
    assert "Divergence from the reference policy" in penalized.everything()
    assert "step 2: of the policy 0.125 nats" in penalized.words()
    assert "Divergence" not in page.everything()


def test_the_headline_says_what_was_reached_in_how_long_and_how_sure_it_is(page: Shown) -> None:
    # 1 of 4 against 3 of 4: far too few to tell
    assert page.headline() == "Success on held-out problems went from 25.0 % to 75.0 % (sampled) in 5 s."
    said = page.everything()
    assert 'Sampled: 25.0 % (4.6 to 69.9 %) in "before", 75.0 % (30.1 to 95.4 %) in "after"; n = 4' in said
    assert "The intervals overlap: this run does not show a difference." in said
    assert page.page["tiles"][3:5] == [
        ("RL steps", "3", "on 24 rollouts"), ("Groups trained", "3", "50.0\u202f% of 6 opened"),
    ]  # fmt: skip
    name, cores, of = page.page["tiles"][5]
    assert (name, cores) == ("Processor cores used", "0.59")
    assert re.fullmatch(r"of \d+, on average", of)
    assert "Finished: all 4 stages." in said
    assert page.notes() == ""


@pytest.mark.parametrize(
    ("stages", "headline", "said"),
    [
        ([(BEFORE, [1.0] * 30), (AFTER, [0.0] * 30)],
         "Success on held-out problems fell from 100.0 % to 0.0 % (sampled) in 2 s.", []),
        ([(BEFORE, [0, 1, 0, 0])],
         "Success on held-out problems is 25.0 % (sampled) in 1 s.", ["nothing to compare it with"]),
        ([(BEFORE, [1.0, 0.0]), (RL, *([[reward, 0, 1, 1]] for reward in (0, 0, 1, 1)))],
         "Success on training problems went from 50.0 % to 75.0 % in 5 s.",
         ["The intervals overlap",
          'Held-out problems were evaluated last in "before", before 4 of the RL steps.',
          'Sampled: 50.0 % (9.5 to 90.5 %) in "before"; n = 2']),
        ([(RL, *[[[0, 0, 0, 1], [0, 0, 0, 0]]] * 30, *[[[1, 1, 1, 0], [1, 1, 1, 1]]] * 10)],
         "Success on training problems rose from 12.5 % to 87.5 % in 40 s.",
         ["Not finished: the run stands in stage 3 of 4, rl (rl), after 40 RL steps.",
          "Nothing was evaluated on held-out problems."]),
        ([(RL, [[0, 1, 1, 1]])], "One RL step in 1 s: 75.0 % of 4 rollouts were right.", []),
        ([(SFT,)], "Nothing was measured yet.", ["There is no metrics.jsonl.", "There is no timeline.jsonl."]),
    ],
)  # fmt: skip
def test_what_is_said_of_a_run(tmp_path: Path, stages: Any, headline: str, said: Sequence[str]) -> None:
    page = report(played(tmp_path, *stages))
    assert page.headline() == headline
    assert [words for words in said if words not in page.everything()] == []
    assert ("overlap" in page.everything()) == ("The intervals overlap" in said)


def test_who_worked_and_who_waited_for_whom(page: Shown) -> None:
    rows = page.rows()
    assert rows["learner.0"] == ["75.0 %", "0.38", ["25.0\u202f% roc_filter: step"]]
    assert rows["roc_filter.0"] == ["50.0 %", "0.25", "nobody"]
    assert any("learner.0: busy 75.0 %, waiting for roc_filter 25.0 %" in words for words in page.words())
    (timeline,) = page.of("lanes")
    learner, roc_filter = timeline["lanes"]
    assert learner["busy"] == [0.75] * 8
    assert learner["waits"] == [(4, [0.25] * 8)]  # roc_filter's colour
    assert roc_filter["busy"] == [0.0, *[0.5] * 7]  # not heard in the first second


def test_before_and_after_are_shown_on_the_same_problems_with_the_numbers_of_all(page: Shown) -> None:
    ((first, *others),) = page.of("outcomes")
    assert first == ("2", "wrong before, right after", "gain")
    assert [(count, words) for count, words, _ in others] == [
        ("1", "right both times"), ("1", "wrong both times"), ("0", "right before, wrong after"),
    ]  # fmt: skip
    articles = page.of("article")
    assert articles[0]["problem"] == "What is 0?"
    assert articles[0]["badge"][0] == "wrong before, right after"
    sides = [(each["title"], each["badges"][0][0]) for each in articles[0]["rollouts"]]
    assert sides == [('In evaluation "before"', "\u2717 wrong"), ('In evaluation "after"', "\u2713 right")]
    assert len(articles) == 4


def test_the_rollouts_of_the_first_and_last_step_are_whole_and_say_why_they_were_kept(page: Shown) -> None:
    bodies = page.bodies()
    assert {page.listed(key)["step"] for key in bodies} == {1, 3}
    trained, dropped = (
        [body for key, body in bodies.items() if (page.listed(key)["step"], page.listed(key)["fate"]) == (1, fate)]
        for fate in ("trained", "all_wrong")
    )
    assert [("kept", "kept") in each["badges"] for each in trained] == [True] * 4
    assert {each["why"] for each in trained} == {
        "Kept: one of the 4 rollouts that its group kept. The group is trained."
    }
    assert {each["why"] for each in dropped} == {"Its group was dropped: every rollout wrong."}
    assert [round(each["advantage"], 3) for each in trained] == [-0.577, 1.732, -0.577, -0.577]
    assert trained[1]["verdict"] == [("verdict", "right"), ("reward", "1"), ("part share", "1")]
    assert trained[1]["turns"][0]["tokens"] == [list("yes"), [0.0] * 3, [1] * 3]


def test_every_trajectory_of_the_journal_is_listed_with_its_figures(page: Shown) -> None:
    rows = page.rows_listed()
    assert len(rows) == 2 * 2 * 4 + 3 * 8
    (first,) = [row for row in rows if row["key"] == "s2-g000000.1.0"]
    assert (first["success"], first["reward"], first["tokens"], first["kept"]) == (True, 1.0, 3, True)
    assert (first["step"], first["text"], first["fate"], first["purpose"]) == (1, "What is 0?", "trained", "train")
    assert {row["fate"] for row in rows} == {"evaluated", "trained", "all_wrong", "all_right"}


def test_a_rollout_with_part_of_the_reward_is_not_called_right(tmp_path: Path) -> None:
    page = report(played(tmp_path, (RL, [[0.5, 1, 0, 0.25]])))
    assert [row["success"] for row in page.rows_listed()] == [False, True, False, False]
    bodies = list(page.bodies().values())
    badges = [each["badges"][0][0] for each in bodies]
    assert badges == ["\u2717 wrong", "\u2713 right", "\u2717 wrong", "\u2717 wrong"]
    assert [each["sizes"].partition(" \u00b7 ")[0] for each in bodies] == [
        "reward 0.5 (share 0.5)", "reward 1 (share 1)", "reward 0 (share 0)", "reward 0.25 (share 0.25)",
    ]  # fmt: skip


def test_samples_outlive_compaction(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.journal.keep_from(run.version)
    forget(run.journal)
    page = report(run.close())
    assert "The trajectories of 2 groups have left the journal" in page.notes()
    assert {page.listed(key)["step"] for key in page.bodies()} == {1, 3}


def test_held_out_success_of_each_environment_is_in_the_table(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    of = {
        name: AnswerFigures(problems=n, success=share, low=share / 2, high=1.0, lost=0, answered=RolloutMeans())
        for name, n, share in (("maths", 6, 0.5), ("orders", 2, 0.25))
    }
    figures = EvaluationFigures(name="late", sampled=of["maths"], environments=of)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "stage": "late", "version": 9, **figures.row()} | ROW_TIME) + "\n")
    rows = report(directory).rows()
    assert rows["late, sampled, maths"][1:4] == ["50.0 %", "25.0 to 100.0 %", "6"]
    assert rows["late, sampled, orders"][1:4] == ["25.0 %", "12.5 to 100.0 %", "2"]


def test_one_evaluation_alone_is_shown_by_itself(tmp_path: Path) -> None:
    page = report(played(tmp_path, (BEFORE, [0, 1, 0, 0])))
    assert page.of("outcomes") == [[("1", "right", "gain"), ("3", "wrong", "loss")]]
    assert len(page.of("article")) == 3


# What a model wrote ---------------------------------------------------------------------------------------------------


def test_what_a_model_wrote_and_what_tools_returned_are_told_apart(tmp_path: Path) -> None:
    called = '<tool_call>{"name": "python", "arguments": {"code": "print(1)\\nprint(2)", "n": 3}}</tool_call><|end|>'
    told = "<|user|><tool_response>1\n2</tool_response><tool_response>oh</tool_response><|end|><|assistant|>"
    records = (ToolCallRecord(1, "python", "success", 0.012, 0.02), ToolCallRecord(1, "python", "timeout", 2.0, 2.0))
    made = trajectory(builders.opened(), 0, [f"Let me see. {called}", told, "<answer>2</answer>"], calls=records)
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0], [f"Let me see. {called}", told, "<answer>2</answer>"])
    (article,) = report(run.close()).of("article")[:1]
    call, *told_by, last = article["rollouts"][0]["turns"]
    arguments = [("code", "print(1)\nprint(2)"), ("n", "3")]
    assert call["parts"] == ["Let me see. ", {"tool": "python", "arguments": arguments}, "<|end|>"]
    assert [call["who"], last["who"], last["parts"]] == ["model \u00b7 policy 0"] * 2 + [["<answer>2</answer>"]]
    assert [(each["class"], each["parts"]) for each in told_by] == [("tool", ["1\n2"]), ("tool", ["oh"])]
    pieces = split(made, lambda tokens: f"{len(tokens)}")
    assert [piece.origin for piece in pieces] == ["model", "tool", "model"]


def test_a_call_that_is_none_stays_text_to_the_letter() -> None:
    whole_call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for words in (
        "<tool_call>{oops</tool_call>",
        "<tool_call>",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "a",
    ):
        assert calls_in(words) == [words]
    assert calls_in(f"<tool_call>{whole_call}b{whole_call}") == [
        f"<tool_call>{whole_call}b",
        {"tool": "f", "arguments": []},
    ]
    assert calls_in("") == []


def test_a_tool_response_that_is_framed_otherwise_is_shown_whole() -> None:
    assert responses("\n[result] 4\n") == ["[result] 4"]


def test_the_types_of_products_are_said_and_what_differs_by_them(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    assert "Matrix products" not in html(read_page(directory, decode_stored)[1])
    for learner, said in (
        (32, "learner.0 in float32, rollout_generator.0 in float32."),
        (16, "learner.0 in bfloat16, "),
    ):
        kinds = {"learner.0": learner, "rollout_generator.0": 32, "odd.0": "x", "odd.1": [1], "odd.2": 1e9}
        actors = {name: {"state": "running", "figures": {"compute_bits": bits}} for name, bits in kinds.items()}
        with (directory / "timeline.jsonl").open("a") as file:
            file.write(json.dumps({"wall": 2e9, "seconds": 1.0, "actors": {**actors, "odd.3": 1}}) + "\n")
        page = html(read_page(directory, decode_stored)[1])
        assert f"Matrix products: {said}" in page
        assert ("holds their rounding" in page) == (learner == 16)


def test_the_page_is_small_its_lines_short_and_its_links_its_own() -> None:
    web = {path.name: path.read_text() for path in map(Path, map(str, CSS.parent.iterdir()))}
    assert sum(text.count("\n") for text in web.values()) <= 3000
    assert [line for text in web.values() for line in text.splitlines() if len(line) > 120] == []
    links = [found for text in web.values() for found in re.findall(r"href: *([^ ,}]+(?:})?`?)", text)]
    assert sorted(links) == ['"#alarms"', '"#main"', "`#${id}`"]  # none is made of a text: no javascript: link
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", str(web))


class Parts(HTMLParser):
    """The elements of a page, and the texts within them, as a browser parses them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, list[str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.policy = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, sorted(name for name, _ in attrs)))
        self._open = tag
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.setdefault(self._open, []).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def test_only_the_style_and_script_of_the_report_itself_may_act(tmp_path: Path) -> None:
    parts = Parts(html(read_page(whole(tmp_path), decode_stored)[1]))
    allowed = dict(part.strip().split(" ", 1) for part in parts.policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for element, source in (("style", parts.texts["style"][0]), ("script", parts.texts["script"][1])):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert allowed[f"{element}-src"] == f"'sha256-{digest}'"


def test_long_texts_are_closed_and_cut_and_the_page_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "TRANSCRIPT_CHARACTERS", 500_000)
    page = report(played(tmp_path, (RL, ([[0, 1], [1, 0]], {"pieces": ["<" * 7_000]}))))
    empty = report(played(tmp_path / "empty", (RL,)))
    assert len(html(page.page)) < len(html(empty.page)) + 510_000
    assert "more characters cut" in page.everything()
    assert "transcripts are left out: the report would grow too large" in page.notes()


# Runs that are not as one would wish ----------------------------------------------------------------------------------


def test_what_the_directory_says_beside_the_journal_is_told(tmp_path: Path) -> None:
    directory = played(tmp_path, (RL,))
    record_memory_kill(directory, "learner.0")
    assert "The kernel killed learner.0 (1 time) for lack of memory: " in report(directory).everything()
    (directory / "summary.json").write_text('{"remarks": ["stages.0, steps 3 to 9: success fell"]}')
    assert "Stages.0, steps 3 to 9: success fell." in report(directory).everything()


def test_a_run_of_supervised_training_alone(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).timeline()
    run.enter(SFT)
    run.version = 1
    run.enter(BEFORE, loss=0.25)
    page = report(run.close())
    assert page.headline() == "Supervised training in 0 s, to a loss of 0.25 on its last batch."
    assert "this says nothing about success" in page.everything()
    assert "step 8: 2" in page.charts()["Supervised loss, stage sft (nats)"]["words"]


def test_thousands_of_steps_are_pooled_and_the_page_stays_small(tmp_path: Path) -> None:
    rng = random.Random(1)
    directory = played(tmp_path, (RL, [[0, 1]]))
    (row,) = [row for row in metrics(directory) if row["kind"] == "step"]
    rows = [{**row, "version": n + 1, "rollouts": 10.0, "success": rng.random(), "entropy": n} for n in range(5000)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    page = report(directory)
    assert len(html(page.page)) < 1_500_000
    assert "Each point of the curves stands for 32 steps" in page.notes()
    assert "The journal holds 1 trained steps, metrics.jsonl 5000" in page.notes()
    pooled = sum(each["success"] * 10 for each in rows[:32])
    low, high = wilson_interval(round(pooled), 320)
    share = f"{pooled / 3.2:.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f} %, n = 320)"
    assert f"steps 1 to 32: {share}" in page.words()
    assert "steps 1 to 32: of the policy 15.5 nats" in page.words()
    (entropy,) = page.charts()["Entropy (nats)"]["lines"]
    assert [entropy[part][0] for part in ("low", "values", "high")] == [0.0, 15.5, 31.0]


def test_figures_that_are_no_numbers_leave_gaps_and_are_named(tmp_path: Path) -> None:
    odd = ({"gradient_norm": 1.0}, {"gradient_norm": math.nan, "policy_gap": math.inf}, {"gradient_norm": 1e300})
    page = report(played(tmp_path, (RL, *(([[0, 1, 1, 1]], figures) for figures in odd))))
    assert "Not finite numbers, of 3 steps: gradient_norm in 2, policy_gap in 1. The curves leave" in page.notes()
    assert "step 2: before clipping \u2013" in page.words()


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    text = (directory / "metrics.jsonl").read_text()
    last = [line for line in text.splitlines() if '"kind": "step"' in line][-1]
    (directory / "metrics.jsonl").write_text(text + last + "\n")
    assert ("RL steps", "3", "on 24 rollouts") in report(directory).page["tiles"]


def test_a_run_without_its_journal_shows_what_is_left(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    with (directory / "timeline.jsonl").open("a") as file:
        file.write('{"actors": 3}\n')
    (directory / "journal.sqlite").write_bytes(b"no database at all " * 100)
    assert "The journal cannot be read" in report(directory).notes()
    (directory / "journal.sqlite").unlink()
    (directory / "topology.json").write_text("{")
    page = report(directory)
    assert "There is no journal.sqlite" in page.notes()
    assert "topology.json is missing or unreadable" in page.notes()
    assert "How far the run came is not recorded." in page.everything()
    assert page.headline().startswith("Success on held-out problems went from 25.0 % to 75.0 %")


def test_a_journal_that_does_not_balance_is_said_to(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.journal.open_group("s2-g000099", RL, 99, "train", b"")
    assert (
        "The journal does not balance: stage 2: 7 groups recorded, but numbers reach 100" in report(run.close()).notes()
    )


def test_without_a_tokenizer_the_models_own_text_is_shown(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0], ["I say", "told", "so"])
    directory = run.close()
    (directory / "model" / "tokenizer.json").write_text("{}")
    page = report(directory)
    assert "The run's tokenizer was not found" in page.notes()
    (turn,) = page.of("article")[0]["rollouts"][0]["turns"]
    assert (turn["who"], turn["parts"]) == ("model \u00b7 policy 0", ["I say\nso"])


def test_stages_of_an_rl_run_are_marked(tmp_path: Path) -> None:
    directory = played(tmp_path, (RL, [[0, 1]], [[0, 1]]))
    rows = metrics(directory)
    rows[-1]["stage"] = "longer"
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert report(directory).charts()["Success"]["boundaries"] == [(0.5, "rl"), (1.5, "longer")]


def test_the_timeline_names_stages_and_starts(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).timeline(4)
    run.enter(SFT)
    run.wall += 2.0
    run.enter(BEFORE)
    directory = run.close()
    rows = [json.loads(line) for line in (directory / "timeline.jsonl").read_text().splitlines()]
    later = [row | {"wall": row["wall"] + 1000.0} for row in rows]
    (directory / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + later))
    page = report(directory)
    (timeline,) = page.of("lanes")
    assert timeline["stages"][0] == ("sft", 0.0, 2.0)
    assert "1:01 to" not in timeline["words"][-1]  # the time between the starts is left out
    assert "Dashed lines: the run was started again, 1 times." in timeline["note"]


# The file and the command ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "empty", "file"])
def test_something_that_is_no_run_directory_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert str(tmp_path / name) in line
    assert not (tmp_path / "empty" / "journal.sqlite").exists()


def test_the_command_writes_the_report_and_names_it_and_one_that_cannot_be_written_leaves_the_old(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = whole(tmp_path)
    assert main(["report", str(directory)]) == 0
    path = directory / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    before = path.read_text(encoding="utf-8")
    assert before.startswith("<!doctype html>")
    assert not list(directory.glob("*.partial"))
    (directory / "report.partial").mkdir()
    assert main(["report", str(directory)]) == 2
    assert "report.partial" in capsys.readouterr().err
    assert path.read_text() == before


@pytest.mark.parametrize("fails", [False, True])
def test_every_run_ends_with_its_report_or_why_there_is_none_and_then_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    async def run_topology(*_: object, **shown: object) -> int:
        await trio.lowlevel.checkpoint()
        whole(tmp_path)
        return 0

    def broken(*_: object) -> str:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("actors.runtime.run.run_topology", run_topology)
    if fails:
        monkeypatch.setattr("agent_rl.observe.report.html", broken)
    path, _ = write_micro(tmp_path)
    assert main(["run", str(path)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert (lines[0] == f"report: {tmp_path / 'run' / 'report.html'}") != fails
    assert ("no report was written (ZeroDivisionError: a mistake of ours); agent-rl report" in captured.err) == fails
    assert json.loads(lines[-1])["steps"] == 3


# Words and colours ----------------------------------------------------------------------------------------------------


@given(st.one_of(st.text(), st.sampled_from(HOSTILE)))
def test_shown_text_holds_nothing_that_reorders_or_controls(words: str) -> None:
    shown = visible(words)
    shown.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert visible(shown) == shown


def test_figures_in_words() -> None:
    shares = [percent(share) for share in (0.1234, 0.0041, 0.0, math.nan)]
    assert shares == ["12.3\u202f%", "0.41\u202f%", "0.0\u202f%", "\u2013"]
    assert spread(0.1, 0.2) == "10.0 to 20.0\u202f%"
    numbers = [compact(number) for number in (1234.5, 0.01234, 2_500_000, 1.8e-6, math.inf)]
    assert numbers == ["1,234", "0.0123", "2.5\u202fM", "1.8e-06", "\u2013"]
    assert [*map(duration, (42, 385, 7200, 259_200))] == ["42\u202fs", "6.4 minutes", "2.0 hours", "3.0 days"]
    assert [*map(clock, (65, 3661))] == ["1:05", "1:01:01"]


def test_text_can_be_read_and_curves_be_told_from_the_page_in_both_colour_schemes() -> None:
    schemes = re.findall(r":root \{(.*?)\}", CSS.read_text(), flags=re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", scheme)) for scheme in schemes[:2])
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        grounds = ("page", "card", "warn-ground", "chip", "model-ground", "tool-ground")
        pairs = [(ink, ground, 4.5) for ink in ("ink", "quiet") for ground in grounds]
        pairs += [("good", "good-ground", 4.5), ("bad", "bad-ground", 4.5), ("accent", "page", 4.5)]
        pairs += [("accent", "model-ground", 4.5), ("bad", "tool-ground", 4.5)]
        pairs += [(f"c{index}", "card", 3.0) for index in range(1, 8)]
        for ink, ground, least in pairs:
            assert contrast(colours[ink], colours[ground]) >= least, (ink, ground)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_reason_to_drop_a_group_has_words_of_its_own() -> None:
    reasons = {getattr(group_instructions, name) for name in dir(group_instructions) if name.isupper()}
    reasons = {reason for reason in reasons if isinstance(reason, str)}
    assert len(reasons) >= 4
    assert reasons - FATES.keys() == {group_instructions.EQUAL_REWARDS}  # it is told apart: all right, or all wrong
