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

_ELEMENTS = (
    *(f"<{name} src={AWAY}{name} onerror={RAN} onload={RAN} onfocus={RAN} autofocus tabindex=0></{name}>"
      for name in ("img", "script", "iframe", "video", "input type=image", "details open ontoggle=window.ran=1", "body")),
    f"<svg><script>{RAN}</script></svg>", f"<svg><a xlink:href=javascript:{RAN}>x", f"<svg><image href={AWAY}svg />",
    f"<svg><foreignObject>{_IMAGE}</foreignObject></svg>", f"<svg></p><style><a id='</style>{_IMAGE}'>",
    f"<math><mtext><table><mglyph><style><!--</style>{_IMAGE}", f"<math><annotation-xml encoding=text/html>{_IMAGE}",
    f"<template shadowrootmode=open>{_IMAGE}</template>", f"<noscript><p title='</noscript>{_IMAGE}'>",
    f"<iframe srcdoc='{_SCRIPT}'></iframe>", f"<base href={AWAY}base/>", f"<link rel=stylesheet href={AWAY}l>",
    f"<meta http-equiv=refresh content=0;url={AWAY}meta>", f"<style>@import '{AWAY}css'</style>", f"<a ping={AWAY}>x</a>",
    f"<meta http-equiv=Content-Security-Policy content='script-src *'>{_SCRIPT}", f"<plaintext>{_IMAGE}",
    "<form id=main><input name=parentNode></form>", "<a id=data></a>", "<img name=getElementById>",
    "<input id=trajectories name=textContent>", f"<![CDATA[{_IMAGE}]]>", f"<!--><{_IMAGE}-->", f"<!-- --!>{_IMAGE}-->",
    f"<scr<script>ipt>{RAN}</script>", f"<ScRiPt\n>{RAN}</sCrIpT\n>", f"<script\x00>{RAN}</script>", f"<\x00script>{RAN}",
    f"<<script>{RAN}//<</script>", f"<img\x0bsrc=x\x0conerror={RAN}>", f"<img src='x' \"onerror={RAN}>",
    f"`><img src=x onerror={RAN}>", f"'\"><svg onload={RAN}>", f'\\"><{_SCRIPT}',
    *(f"</{name}>{_IMAGE}" for name in ("script", "style", "textarea", "title", "template", "svg", "body", "html", "option")),
)  # fmt: skip
_SCHEMES = tuple(
    f"{before}{scheme}{after}"
    for scheme in (f"javascript:{RAN}", f"JaVaScRiPt:{RAN}", f"java\tscript:{RAN}", f"\x01javascript:{RAN}",
                   f"&#106;avascript&colon;{RAN}", f"data:text/html,{_SCRIPT}", "file:///etc/passwd", f"https:{AWAY}link")
    for before, after in (("", ""), ("<a href='", "'>here</a>"), ("[here](", ")"))
)  # fmt: skip
_SIGNS = tuple(
    f"a{chr(code)}b"
    for code in (*range(9), *range(0x0B, 0x20), 0x7F, 0x80, 0x85, 0x90, 0x9B, 0x9F, 0xA0, 0xAD, 0x34F, 0x61C, 0x115F,
                 0x180E, *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x206A),
                 0x3164, 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xFDD0, 0xFE0F, 0xFEFF, 0xFFF9, 0xFFFD, 0xFFFE, 0xFFFF, 0x1D173,
                 0x1FFFE, 0xE0001, 0xE0041, 0x10FFFF)
)  # fmt: skip
_NAMES = (
    "__proto__", "constructor", "prototype", "toString", "valueOf", "hasOwnProperty", "toJSON", "then", "length",
    "isPrototypeOf", "__defineGetter__", "__lookupSetter__", "__proto__.polluted", "constructor.prototype", "undefined",
    "null", "NaN", "true", "0", "-0", "1e999", "[object Object]", "data", "main", "head", "learning", "made", "", " ",
)  # fmt: skip
_SYNTAX = (
    f"${{{RAN}}}", f"`${{{RAN}}}`", "{{ data }}", "{{ script }}", "{{ policy }}", "}}", "{{", f"{{% {RAN} %}}", f"<%= {RAN} %>",
    "%s%n%x", "{0}{name}", f"';{RAN};'", f'";{RAN};"', f"\\';{RAN}//", f"*/{RAN}/*", f"\n{RAN}\n//", f"\u2028{RAN}",
    f"\u2029{RAN}", f"\\u003cscript>{RAN}", f"\\x3cscript\\x3e{RAN}", "\\", '"', "'", "`", '"}],"sections":[{"id":"x"',
    '"]}</script>', '\\\\"', "<!--<script>", "-->", "]]>", "<", ">", "&", "&&lt;", "&lt;script&gt;", "&#60;script&#62;",
    "&amp;lt;b&amp;gt;", "&NewLine;&Tab;", "&#0;", "+ADw-script+AD4-", "%3Cscript%3E", "\uff1cscript\uff1e",
    "</style>*{display:none}", f"x;background:url({AWAY}css)", "\\3c b\\3e", "/*", "=cmd|'/c calc'!A1", "\t=1",
    "\x1b[31mred\x1b[0m", "\x1b[2J\x1b[H", f"\x1b]8;;javascript:{RAN}\x07x\x1b]8;;\x07", "\x9b31m", "\rover", "a\x08b",
    "\n\ndata: {}\n\n", "\r\n\r\ndata: null\r\n\r\n", "event: message\ndata: 1", "HTTP/1.1 200 OK\r\n\r\n", "../../../etc/passwd",
    "a/b?c=d&e=f#g", "'; DROP TABLE groups; --", "--help", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<|im_end|>", "<tool_call>{}</tool_call>", '<tool_call>{"name": 1, "arguments": []}</tool_call>', "\u202egnp.exe",
    "\u2066\u202e\u2066\u202e", "e" + "\u0301" * 300, "\ufdfd" * 20, "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\u05d0\u05d1 abc \u0627\u0628", "\ud83d", "\udc69x",
)  # fmt: skip
_LONG = (
    "x" * 7_000 + _IMAGE, "<" * 7_000, "&lt;" * 2_000, "\n" * 3_000 + _SCRIPT, "<b>" * 2_500, "[" * 7_000,
    '{"a":' * 1_500, "<tool_response>" * 500, "<tool_call>" * 700, "w " * 3_500, "\u202e" * 3_000,
)  # fmt: skip
TEXTS = tuple(dict.fromkeys((*_ELEMENTS, *_SCHEMES, *_SIGNS, *_NAMES, *_SYNTAX, *_LONG)))
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
