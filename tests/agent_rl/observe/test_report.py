"""The report of whole runs: its figures are the journal's, and whatever a run directory holds, it says so plainly."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from pathlib import Path

import pytest
import trio

from actors.cli.main import main
from actors.roc_filter.stored import decode_stored
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans
from agent_rl.groups.measures import wilson_interval
from agent_rl.messages import ToolCallRecord
from agent_rl.observe.report import ReportError, write_report
from agent_rl.observe.report.samples import WrittenCall, calls_in, responses, split
from agent_rl.records.audit import audit
from agent_rl.records.journal import Journal
from tests import builders
from tests.agent_rl.observe.test_report_drawing import HOSTILE
from tests.agent_rl.records.journal_retention_contract import forget
from tests.agent_rl.records.report_runs import (
    AFTER,
    BEFORE,
    RL,
    SFT,
    Page,
    SyntheticRun,
    html,
    metrics,
    report,
    trajectory,
)
from tests.end_to_end.topologies import write_micro


def whole(folder: Path) -> Path:
    return SyntheticRun(folder).whole().timeline().close()


# Figures --------------------------------------------------------------------------------------------------------------


def test_the_figures_shown_are_the_journals(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    page = report(directory)
    journal = Journal(directory / "journal.sqlite")
    shown = {row[0]: row[1:] for row in page.rows()}
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
    titles = "\n".join(page.texts("title")).replace("\u202f", " ")
    for index, step in enumerate(journal.steps()):
        low, high = wilson_interval(round(8 * step.figures.sampled.success), 8)
        share = f"{100 * step.figures.sampled.success:.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f} %, n = 8)"
        assert f"step {index + 1}: {share}" in titles
        assert f"step {index + 1}: of the policy {step.learner_figures.entropy:g} nats" in titles
    journal.close()


def test_the_divergence_from_the_reference_is_a_curve_where_there_is_one(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    for kl in (0.0, 0.125):
        run.step([[1.0, 0.0]], kl=kl)
    page = report(run.close())
    assert "Divergence from the reference policy" in page.everything()
    assert "step 2: of the policy 0.125 nats" in page.texts("title")
    assert "Divergence" not in report(whole(tmp_path / "without")).everything()


def test_the_headline_says_what_was_reached_in_how_long_and_how_sure_it_is(tmp_path: Path) -> None:
    page = report(whole(tmp_path))
    # 1 of 4 against 3 of 4: far too few to tell
    assert page.headline() == "Success on held-out problems went from 25.0 % to 75.0 % (sampled) in 5 s."
    said = page.everything()
    assert 'Sampled: 25.0 % (4.6 to 69.9 %) in "before", 75.0 % (30.1 to 95.4 %) in "after"; n = 4' in said
    assert "The intervals overlap: this run does not show a difference." in said
    assert "3 RL steps on 24 rollouts of 6 groups." in said
    assert re.search(r"The actors used 0\.59 of \d+ processor cores on average", said)
    assert "Finished: all 4 stages." in said
    assert page.notes() == ""


def test_a_difference_beyond_the_intervals_is_called_one(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0] * 30)
    run.enter(AFTER)
    run.evaluate(AFTER, [0.0] * 30)
    page = report(run.close())
    assert page.headline() == "Success on held-out problems fell from 100.0 % to 0.0 % (sampled) in 2 s."
    assert "overlap" not in page.everything()


def test_who_worked_and_who_waited_for_whom(tmp_path: Path) -> None:
    page = report(whole(tmp_path))
    rows = {row[0]: row[1:] for row in page.rows()}
    assert rows["learner.0"] == ["75.0 %", "0.38", "25.0 % roc_filter: step"]
    assert rows["roc_filter.0"] == ["50.0 %", "0.25", "nobody"]
    titles = [title.replace("\u202f", " ") for title in page.texts("title")]
    assert any("learner.0: busy 75.0 %, waiting for roc_filter 25.0 %" in title for title in titles)


def test_before_and_after_are_shown_on_the_same_problems_with_the_numbers_of_all(tmp_path: Path) -> None:
    page = report(whole(tmp_path))
    (outcomes,) = page.texts("ul", "outcomes")
    assert outcomes == "2 wrong before, right after1 right both times1 wrong both times0 right before, wrong after"
    articles = page.texts("article")
    first = next(article for article in articles if article.startswith("What is 0?"))
    assert "wrong before, right after" in first
    assert first.index('In evaluation "before"') < first.index("\u2717 wrong") < first.index('In evaluation "after"')
    assert first.index('In evaluation "after"') < first.index("\u2713 right")
    assert sum(article.startswith("What is") for article in articles) == 4 + 2 + 2


def test_the_groups_of_the_first_and_last_step_say_what_was_kept(tmp_path: Path) -> None:
    page = report(whole(tmp_path))
    assert [heading for heading in page.texts("h3") if heading.startswith("Groups of the")] == [
        "Groups of the first RL step (rl, step 1 of the run)",
        "Groups of the last RL step (rl, step 3 of the run)",
    ]
    articles = page.texts("article")[4:]
    assert ["1 of 4 right, trained" in articles[0], "0 of 4 right, equal rewards" in articles[1]] == [True, True]
    assert articles[0].count("kept") == 4
    assert "kept" not in articles[1]


def test_samples_outlive_compaction(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).whole()
    run.journal.keep_from(run.version)
    forget(run.journal)
    page = report(run.close())
    headings = page.texts("h3")
    assert "The trajectories of 2 groups have left the journal" in page.notes()
    assert "Groups of the first RL step (rl, step 1 of the run)" in headings
    assert "Groups of the last RL step (rl, step 3 of the run)" in headings


def test_held_out_success_of_each_environment_is_in_the_table(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    of = {
        name: AnswerFigures(problems=n, success=share, low=share / 2, high=1.0, lost=0, answered=RolloutMeans())
        for name, n, share in (("maths", 6, 0.5), ("orders", 2, 0.25))
    }
    figures = EvaluationFigures(name="late", sampled=of["maths"], environments=of)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "evaluation", "stage": "late", "version": 9, **figures.row()}) + "\n")
    rows = report(directory).texts("tr")
    for name, shown in (("maths", "50.0\u202f%25.0 to 100.0\u202f%6"), ("orders", "25.0\u202f%12.5 to 100.0\u202f%2")):
        assert any(row.startswith(f"late, sampled, {name}") and shown in row for row in rows), rows


def test_one_evaluation_alone_is_shown_by_itself(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [0, 1, 0, 0])
    page = report(run.close())
    assert page.headline() == "Success on held-out problems is 25.0 % (sampled) in 1 s."
    assert "nothing to compare it with" in page.everything()
    assert page.texts("ul", "outcomes") == ["1 right3 wrong"]
    assert len(page.texts("article")) == 3


# What a model wrote ---------------------------------------------------------------------------------------------------


def test_what_a_model_wrote_and_what_tools_returned_are_told_apart(tmp_path: Path) -> None:
    called = '<tool_call>{"name": "python", "arguments": {"code": "print(1)\\nprint(2)", "n": 3}}</tool_call><|end|>'
    told = "<|user|><tool_response>1\n2</tool_response><tool_response>oh</tool_response><|end|><|assistant|>"
    records = (ToolCallRecord(1, "python", "success", 0.012, 0.02), ToolCallRecord(1, "python", "timeout", 2.0, 2.0))
    made = trajectory(builders.opened(), 0, [f"Let me see. {called}", told, "<answer>2</answer>"], calls=records)
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0], [f"Let me see. {called}", told, "<answer>2</answer>"])
    page = report(run.close())
    first, last = page.texts("section", "model")
    assert first == "model \u00b7 policy 7Let me see. calls pythoncodeprint(1)\nprint(2)n3<|end|>"
    assert last == "model \u00b7 policy 7<answer>2</answer>"
    assert page.texts("section", "tool") == ["tool1\n2", "tooloh"]
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
    assert calls_in(f"<tool_call>{whole_call}b") == ["<tool_call>", WrittenCall("f", {}), "b"]
    assert calls_in("") == []


def test_a_tool_response_that_is_framed_otherwise_is_shown_whole() -> None:
    assert responses("\n[result] 4\n") == ["[result] 4"]


@pytest.mark.parametrize("words", HOSTILE)
def test_nothing_a_model_or_a_file_says_becomes_part_of_the_page(tmp_path: Path, words: str) -> None:
    said = words.encode(errors="replace").decode()
    call = f"<tool_call>{json.dumps({'name': said, 'arguments': {said: said}})}</tool_call>"
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0], [call + said, f"<tool_response>{said}</tool_response>", said])
    directory = run.close()
    settings = json.loads((directory / "topology.json").read_text())
    settings["stages.1"] = f"evaluate stage named {said}"
    settings[said] = {said: [said]}
    (directory / "topology.json").write_text(json.dumps(settings))
    with (directory / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "step", "stage": said, "version": 9, said: said, "success": 0.5, "rollouts": 2}))
        file.write("\n" + json.dumps({"kind": "evaluation", "stage": said, f"success_{said}_greedy": 1.0}) + "\n")
    actors = {said: {"busy": 0.5, "cpu": 0.1, "waiting_for": f"{said}: {said}", "waited": 0.5}}
    (directory / "timeline.jsonl").write_text(json.dumps({"wall": 1.0, "seconds": 1.0, "actors": actors}) + "\n")
    honest, hostile = report(whole(tmp_path / "honest")), report(directory)
    assert {name for name, _, _ in hostile.elements} <= {name for name, _, _ in honest.elements}
    assert len(hostile.texts("script")) == 1
    for _, attributes, _ in hostile.elements:
        assert not any(name.startswith("on") or name in {"src", "style"} for name in attributes)
        assert not (attributes.get("href") or "#").replace("data:,", "#").strip("#").startswith(("http", "javascript"))


def test_only_the_style_and_script_of_the_report_itself_may_act(tmp_path: Path) -> None:
    page = report(whole(tmp_path))
    (policy,) = [
        attributes["content"] or ""
        for name, attributes, _ in page.elements
        if name == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for element in ("style", "script"):
        (source,) = page.texts(element)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert allowed[f"{element}-src"] == f"'sha256-{digest}'"


def test_long_texts_are_closed_and_cut_and_the_page_stays_small(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    long = "<" * 10_000
    run.step([[0, 1] * 8, [1, 0] * 8, [0, 0]], [long, long, long])
    run.step([[0, 1] * 8, [1, 0] * 8, [0, 0]], [long, long, long])
    made = html(run.close())
    assert len(made.encode()) < 3_000_000
    page = Page(made)
    assert "more characters cut" in page.everything()
    assert "transcripts are left out: the report would grow too large" in page.notes()
    assert not any("open" in attributes for name, attributes, _ in page.elements if name == "details")


# Runs that are not as one would wish ----------------------------------------------------------------------------------


def test_a_run_that_was_interrupted_says_where(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.version = 1
    run.enter(RL)
    for _ in range(30):
        run.step([[0, 0, 0, 1], [0, 0, 0, 0]])
    for _ in range(10):
        run.step([[1, 1, 1, 0], [1, 1, 1, 1]])
    page = report(run.close())
    assert "Not finished: the run stands in stage 3 of 4, rl (rl), after 40 RL steps." in page.everything()
    assert page.headline() == "Success on training problems rose from 12.5 % to 87.5 % in 40 s."
    assert "Nothing was evaluated on held-out problems." in page.everything()


def test_a_run_of_supervised_training_alone(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).timeline()
    run.enter(SFT)
    run.version = 1
    run.enter(BEFORE, loss=0.25)
    page = report(run.close())
    assert page.headline() == "Supervised training in 0 s, to a loss of 0.25 on its last batch."
    assert "this says nothing about success" in page.everything()
    assert [heading for heading in page.texts("h3") if "Supervised loss" in heading] == [
        "Supervised loss, stage sft (nats)"
    ]
    assert "step 8: 2" in page.texts("title")


def test_a_run_that_has_done_nothing_yet(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(SFT)
    page = report(run.close())
    assert page.headline() == "Nothing was measured yet."
    assert "There is no metrics.jsonl." in page.notes()
    assert "There is no timeline.jsonl." in page.notes()


def test_steps_after_the_last_evaluation_are_not_its_success(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(BEFORE)
    run.evaluate(BEFORE, [1.0, 0.0])
    run.enter(RL)
    for reward in (0, 0, 1, 1):
        run.step([[reward, 0, 1, 1]])
    page = report(run.close())
    assert page.headline() == "Success on training problems went from 50.0 % to 75.0 % in 5 s."
    assert 'Held-out problems were evaluated last in "before", before 4 of the RL steps.' in page.everything()
    assert 'Sampled: 50.0 % (9.5 to 90.5 %) in "before"; n = 2' in page.everything()


def test_one_step_is_not_compared_with_itself(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1, 1, 1]])
    assert report(run.close()).headline() == "One RL step in 1 s: 75.0 % of 4 rollouts were right."


def test_thousands_of_steps_are_pooled_and_the_page_stays_small(tmp_path: Path) -> None:
    rng = random.Random(1)
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1]])
    directory = run.close()
    (row,) = [row for row in metrics(directory) if row["kind"] == "step"]
    rows = [{**row, "version": n + 1, "rollouts": 10.0, "success": rng.random(), "entropy": n} for n in range(5000)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    made = html(directory)
    assert len(made.encode()) < 1_500_000
    page = Page(made)
    assert "Each point of the curves stands for 32 steps" in page.notes()
    assert "The journal holds 1 trained steps, metrics.jsonl 5000" in page.notes()
    pooled = sum(each["success"] * 10 for each in rows[:32])
    low, high = wilson_interval(round(pooled), 320)
    share = f"{pooled / 3.2:.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f} %, n = 320)"
    titles = [title.replace("\u202f", " ") for title in page.texts("title")]
    assert f"steps 1 to 32: {share}" in titles
    assert "steps 1 to 32: of the policy 15.5 nats" in titles


def test_figures_that_are_no_numbers_leave_gaps_and_are_named(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1, 1, 1]], gradient_norm=1.0)
    run.step([[0, 1, 1, 1]], gradient_norm=float("nan"), policy_gap=float("inf"))
    run.step([[0, 1, 1, 1]], gradient_norm=1e300)
    page = report(run.close())
    assert "Not finite numbers, of 3 steps: gradient_norm in 2, policy_gap in 1. The curves leave" in page.notes()
    assert "step 2: before clipping \u2013" in page.texts("title")


def test_half_written_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "ver')
    with (directory / "timeline.jsonl").open("a") as file:
        file.write('nonsense\n\n[1]\n{"actors": 3}\n')
    page = report(directory)
    assert "1 of 10 lines of metrics.jsonl cannot be read (the last one, half-written)" in page.notes()
    assert "2 of 12 lines of timeline.jsonl cannot be read; they are left out." in page.notes()
    assert page.headline() == report(whole(tmp_path / "sound")).headline()


def test_a_step_written_twice_counts_once(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    text = (directory / "metrics.jsonl").read_text()
    last = [line for line in text.splitlines() if '"kind": "step"' in line][-1]
    (directory / "metrics.jsonl").write_text(text + last + "\n")
    assert "3 RL steps on 24 rollouts" in report(directory).everything()


def test_a_run_without_its_journal_shows_what_is_left(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    (directory / "journal.sqlite").unlink()
    (directory / "topology.json").write_text("{")
    page = report(directory)
    assert "There is no journal.sqlite" in page.notes()
    assert "topology.json is missing or unreadable" in page.notes()
    assert "How far the run came is not recorded." in page.everything()
    assert page.headline().startswith("Success on held-out problems went from 25.0 % to 75.0 %")


def test_a_broken_journal_is_said_to_be(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    (directory / "journal.sqlite").write_bytes(b"no database at all " * 100)
    page = report(directory)
    assert "The journal cannot be read" in page.notes()
    assert "Trajectories cannot be read from the journal" in page.notes()


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
    assert page.texts("section", "model") == ["model \u00b7 policy 7I say\nso"]


def test_stages_of_an_rl_run_are_marked(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1]])
    run.step([[0, 1]])
    directory = run.close()
    rows = metrics(directory)
    rows[-1]["stage"] = "longer"
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "longer" in report(directory).texts("text", "quiet")


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
    assert "stage sft: 0:00 to 0:02" in page.texts("title")
    assert "Dashed lines: the run was started again, 1 times." in page.everything()


# The file and the command ---------------------------------------------------------------------------------------------


def test_the_command_writes_the_report_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = whole(tmp_path)
    assert main(["report", str(directory)]) == 0
    path = directory / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(directory.glob("*.partial"))


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


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    path = write_report(directory, decode_stored)
    before = path.read_text()
    (directory / "report.partial").mkdir()
    with pytest.raises(OSError, match=r"report\.partial"):
        write_report(directory, decode_stored)
    assert path.read_text() == before
    assert main(["report", str(directory)]) == 2
    with pytest.raises(ReportError, match="no run directory"):
        write_report(tmp_path / "nowhere", decode_stored)


@pytest.fixture
def topology_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A topology file whose run is over at once, and left a run directory."""

    async def run_topology(*_: object, **shown: object) -> int:
        await trio.lowlevel.checkpoint()
        whole(tmp_path)
        return 0

    monkeypatch.setattr("actors.runtime.run.run_topology", run_topology)
    path, _ = write_micro(tmp_path)
    return path


def test_every_run_ends_with_its_report_and_then_its_summary(
    topology_of_a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(topology_of_a_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"report: {tmp_path / 'run' / 'report.html'}"
    assert json.loads(lines[-1])["steps"] == 3


def test_a_report_that_fails_does_not_fail_the_run_and_is_said_to(
    topology_of_a_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("agent_rl.observe.report.page", broken)
    assert main(["run", str(topology_of_a_run)]) == 0
    captured = capsys.readouterr()
    assert "no report was written (ZeroDivisionError: a mistake of ours); agent-rl report" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["steps"] == 3
