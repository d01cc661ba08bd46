"""Texts that try to be more than texts on a page, and a run that has each of them wherever others put texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from actors.roc_filter.replay import encode_stored
from agent_rl.figures import AnswerFigures, EvaluationFigures, RolloutMeans, TrainingFigures
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import Judgement, Problem, ToolCallRecord
from tests.agent_rl.records.report_runs import BEFORE, RL, SyntheticRun, trajectory

RAN = "window.ran=1"
"""What a script of a text would do."""
AWAY = "//elsewhere.invalid/"
"""A place that no text may have asked for something."""
_IMAGE = f"<img src=x onerror={RAN}>"
_SCRIPT = f"<script>{RAN}</script>"

_LONG = (
    "x" * 7_000 + _IMAGE, "<" * 7_000, "&lt;" * 2_000, "\n" * 3_000 + _SCRIPT, "<b>" * 2_500, "[" * 7_000,
    '{"a":' * 1_500, "<tool_response>" * 500, "<tool_call>" * 700, "w " * 3_500, "\u202e" * 3_000,
)  # fmt: skip
TEXTS = (*json.loads(Path(__file__).with_name("hostile_texts.json").read_text(encoding="utf-8")), *_LONG)
"""A script among them says RAN, and an address is below AWAY."""
assert len(TEXTS) >= 250


def sent(text: str) -> str:
    """As a message can carry it: without lone surrogates."""
    return text.encode(errors="replace").decode()


def deep(levels: int) -> Any:
    """Lists within lists."""
    made: Any = _IMAGE
    for _ in range(levels):
        made = [made]
    return made


class HostileRun(SyntheticRun):
    """A run whose every text, of problems, models, tools, actors and settings, is hostile."""

    asked = ""

    def question(self, number: int) -> Problem:
        """The text alone."""
        return Problem(*[self.asked] * 4, {"subject": self.asked})

    def one_step(self) -> None:
        """A trained step with two rollouts for each text, and one whose reason for dropping is the text."""
        trained, decided, rollouts = [], [], []
        for text in map(sent, TEXTS):
            self.asked = text
            group = self._open("train", samples=2)
            arguments = {text: text, "deep": deep(400), "__proto__": {"polluted": text}}
            call = json.dumps({"name": text, "arguments": arguments})
            pieces = [
                f"{text}\n<tool_call>{call}</tool_call><tool_call>{text}</tool_call>",
                f"<tool_response>\n{text}\n</tool_response>", text,
            ]  # fmt: skip
            record = ToolCallRecord(1, text, "error", 0.1, 0.2, arguments={text: text}, response=text)
            for sample in (0, 1):
                made = trajectory(group, sample, ["yes"] if sample else pieces, calls=[record])
                verdict = Judgement(float(sample), bool(sample), {text: 1.0}, 0.5, text, text)
                rollouts.append(RolloutFigures.of(made, group).judged(verdict))
                self.journal.add_trajectory(made.group, sample, 0, made.status, encode_stored(made), verdict)
            self.journal.ready(group.group, [(0, 0), (1, 0)], [0.0, 1.0], self.version, 1)
            trained.append(group.group)
            dropped = self._open("train", samples=1)
            self.journal.drop(dropped.group, text or "none", 0.0, self.version, 1)
            decided += [group.group, dropped.group]
        self.close_step(trained, decided, rollouts)
        self.version += 1


def hostile_run(folder: Path, name: str) -> Path:
    """The run, in a directory of this name."""
    run = HostileRun(folder)
    run.enter(BEFORE)
    run.asked = " ".join(map(sent, TEXTS[:60]))
    run.evaluate(BEFORE, [0.0, 1.0], [run.asked])
    run.enter(RL)
    run.one_step()
    said = " ".join(sent(text) for text in TEXTS if len(text) < 500)
    run.journal.step_trained(run.version - 1, TrainingFigures(entropy=0.5, policy_gap=0.001, mismatch_cause=said))
    directory = run.close()
    settings = json.loads((directory / "topology.json").read_text())
    settings |= {text: {text: [text, folder.name]} for text in TEXTS} | {"stages.1": f"evaluate stage named {_IMAGE}"}
    (directory / "topology.json").write_text(json.dumps(settings))
    with (directory / "metrics.jsonl").open("ab") as file:
        answers = AnswerFigures(problems=9, success=0.5, low=0.5, high=0.5, lost=0, answered=RolloutMeans())
        for number, text in enumerate(TEXTS):
            about = {"stage": text, "version": 9 + number, "seconds": 1.0, "wall": 1.0}
            row = {text: text, "kind": "step", "step": number, "success": 0.5, "rollouts": 2, **about}
            figures = EvaluationFigures(name=text, sampled=answers, environments={text: answers}, greedy=answers)
            held = {"kind": "evaluation", **figures.row(), **about}
            file.write(f"{json.dumps(row)}\n{json.dumps(held)}\n".encode())
        file.write(b'{"kind": "step", "stage": "\xff\xc0\xaf\xed\xa0\x80"}\n' + b'{"a":' * 50_000 + b"\n")
    actors = {
        text: {"busy": 0.5, "cpu": 0.1, "waiting_for": f"{text}: {text}", "waited": 0.5, "state": text,
               "figures": {text: 1.0, "kv_used": 1, "kv_total": 2}}
        for text in TEXTS
    }  # fmt: skip
    (directory / "timeline.jsonl").write_text(json.dumps({"wall": 1.0, "seconds": 1.0, "actors": actors}) + "\n")
    wanted = {sent(text): {"replicas": 2, "host": sent(text)} for text in TEXTS}
    (directory / "topology.1.toml").write_bytes(tomli_w.dumps({"actors": wanted}).encode())
    (directory / "end.json").write_text(json.dumps({"reason": " ".join(TEXTS[:40])}))
    return directory.rename(folder / name)
