"""Texts that try to be more than texts on a page, and a run that has each of them wherever others put texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from actors.roc_filter.replay import encode_stored
from agent_rl.figures import TrainingFigures
from agent_rl.groups.statistics import RolloutFigures, step_figures
from agent_rl.messages import GroupOpened, Judgement, PolicyVersion, Problem, ToolCallRecord
from agent_rl.scheduling.staleness import Step
from tests.agent_rl.records.report_runs import BEFORE, RL, SyntheticRun, trajectory

RAN = "window.ran=1"
"""What a script of a text would do."""
AWAY = "//elsewhere.invalid/"
"""A place that no text may have asked for something."""
_IMAGE = f"<img src=x onerror={RAN}>"
_SCRIPT = f"<script>{RAN}</script>"

_ELEMENTS = (
    *(f"<{name} src={AWAY}{name} onerror={RAN} onload={RAN}></{name}>"
      for name in ("img", "script", "iframe", "embed", "video", "audio", "source", "frame", "input type=image", "track")),
    *(f"<{name} onfocus={RAN} autofocus tabindex=0 onpointerover={RAN}>"
      for name in ("input", "textarea", "select", "button", "a", "div", "details open ontoggle=window.ran=1", "x-y")),
    *(f"<{name} onanimationstart={RAN} onbegin={RAN} onload={RAN} onpageshow={RAN}>"
      for name in ("body", "svg", "math", "marquee", "style", "object", "link", "frameset")),
    f"<svg><script>{RAN}</script></svg>", f"<svg><script href=data:,{RAN} />", f"<svg><a xlink:href=javascript:{RAN}>x",
    f"<svg><animate onbegin={RAN} attributeName=x dur=1s>", f"<svg><foreignObject>{_IMAGE}</foreignObject></svg>",
    f"<svg><use href=data:image/svg+xml,{_SCRIPT}#x>", f"<svg><set attributeName=href to=javascript:{RAN}>",
    f"<svg><image href={AWAY}svg />", f"<svg><style>@import '{AWAY}css'</style></svg>",
    f"<math><mtext><table><mglyph><style><!--</style>{_IMAGE}", f"<math href=javascript:{RAN}>x</math>",
    f"<math><mi><table><mi><style><textarea>{_IMAGE}</textarea>", f"<math><annotation-xml encoding=text/html>{_IMAGE}",
    f"<template>{_SCRIPT}</template>", f"<template shadowrootmode=open>{_IMAGE}</template>",
    f"<noscript><p title='</noscript>{_IMAGE}'>", f"<noembed><p title='</noembed>{_IMAGE}'>",
    f"<form><math><mtext></form><form><mglyph><style></math>{_IMAGE}", f"<style><style/>{_IMAGE}",
    f"<svg></p><style><a id='</style>{_IMAGE}'>", f"<select><iframe></select>{_IMAGE}", f"<xmp><p title='</xmp>{_IMAGE}'>",
    f"<table><caption><svg><title><style>{_IMAGE}</style>", f"<p id='</p>{_IMAGE}'>", f"<plaintext>{_IMAGE}",
    f"<iframe srcdoc='{_SCRIPT}'></iframe>", f"<iframe src='javascript:{RAN}'></iframe>", f"<base href={AWAY}base/>",
    f"<object data=javascript:{RAN}>", f"<meta http-equiv=refresh content=0;url={AWAY}meta>",
    f"<meta http-equiv=Content-Security-Policy content='script-src *'>{_SCRIPT}", f"<link rel=stylesheet href={AWAY}l>",
    f"<form action=javascript:{RAN}><button>send</button></form>", "<form id=main><input name=parentNode></form>",
    "<a id=data></a>", "<img name=getElementById>", "<input id=trajectories name=textContent>", f"<a ping={AWAY}>x</a>",
    f"<portal src={AWAY}>", f"<?xml-stylesheet href='{AWAY}xsl'?>", "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    f"<![CDATA[{_IMAGE}]]>", f"<!--><{_IMAGE}-->", f"<!--[if IE]>{_SCRIPT}<![endif]-->", f"<!-- --!>{_IMAGE}-->",
    f"<scr<script>ipt>{RAN}</script>", f"<ScRiPt\n>{RAN}</sCrIpT\n>", f"<script\x00>{RAN}</script>", f"<\x00script>{RAN}",
    f"<script/x>{RAN}</script>", f"<<script>{RAN}//<</script>", f"<img\x0bsrc=x\x0conerror={RAN}>", f"<svg/onload={RAN}//",
    f"<img src='x' \"onerror={RAN}>", f"`><img src=x onerror={RAN}>", f"'\"><svg onload={RAN}>", f'\\"><{_SCRIPT}',
)  # fmt: skip
_CLOSERS = tuple(
    f"</{name}>{_IMAGE.replace('=x', f'={AWAY}{name}')}"
    for name in ("script", "style", "pre", "textarea", "title", "template", "noscript", "svg", "math", "select", "body",
                 "html", "head", "table", "details", "summary", "option", "span", "code", "iframe", "xmp", "section")
)  # fmt: skip
_SCHEMES = tuple(
    f"{before}{scheme}{after}"
    for scheme in (f"javascript:{RAN}", f"JaVaScRiPt:{RAN}", f"java\tscript:{RAN}", f"java\nscript:{RAN}",
                   f"\x01javascript:{RAN}", f"&#106;avascript&colon;{RAN}", f"vbscript:{RAN}", f"livescript:{RAN}",
                   f"data:text/html,{_SCRIPT}", "data:text/html;base64,PHNjcmlwdD53aW5kb3cucmFuPTE8L3NjcmlwdD4=",
                   f"view-source:javascript:{RAN}", "file:///etc/passwd", f"https:{AWAY}link")
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
    f"${{{RAN}}}", f"`${{{RAN}}}`", "{{ data }}", "{{ script }}", "{{ policy }}", "}}", "{{", f"{{{{constructor('{RAN}')()}}}}",
    f"{{% {RAN} %}}", f"<%= {RAN} %>", f"#{{{RAN}}}", "%s%n%x", "{0}{name}", f"';{RAN};'", f'";{RAN};"', f"\\';{RAN}//",
    f"*/{RAN}/*", f"\n{RAN}\n//", f"\u2028{RAN}", f"\u2029{RAN}", f"\\u003cscript>{RAN}", f"\\x3cscript\\x3e{RAN}", "\\",
    '"', "'", "`", '"}],"sections":[{"id":"x"', '"]}</script>', '\\\\"', "<!--<script>", "-->", "]]>", "<", ">", "&", "&&lt;",
    "&lt;script&gt;", "&#60;script&#62;", "&#x3c;b&#x3e;", "&amp;lt;b&amp;gt;", "&NewLine;&Tab;", "&notin;", "&#0;", "&#xD800;",
    "+ADw-script+AD4-", "%3Cscript%3E", "%253Cscript%253E", "\xc0\xbcscript\xc0\xbe", "\uff1cscript\uff1e", "\u2039b\u203a",
    "</style>*{display:none}", "}body{display:none}", f"x;background:url({AWAY}css)", f"@import url({AWAY}import);",
    "width:expression(alert(1))", "\\3c b\\3e", f"behavior:url({AWAY}htc)", "-moz-binding:url(#x)", "</style", "/*",
    "=cmd|'/c calc'!A1", "+1+1", "-2+3", "@SUM(1)", f'=HYPERLINK("{AWAY}")', "\t=1", "\x1b[31mred\x1b[0m", "\x1b[2J\x1b[H",
    f"\x1b]8;;javascript:{RAN}\x07x\x1b]8;;\x07", "\x1b]0;title\x07", "\x9b31m", "\x1b]52;c;eA==\x07", "\rover", "a\x08b",
    "\n\ndata: {}\n\n", "\r\n\r\ndata: null\r\n\r\n", "event: message\ndata: 1", "HTTP/1.1 200 OK\r\n\r\n", "retry: 0",
    "../../../etc/passwd", "..\\..\\x", "a/b?c=d&e=f#g", "'; DROP TABLE groups; --", "$(touch x)", "`touch x`", "| x", "--help",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_end|>", "<tool_call>{}</tool_call>",
    '<tool_call>{"name": 1, "arguments": []}</tool_call>', "\u202egnp.exe", "\u2066\u202e\u2066\u202e", "e" + "\u0301" * 300,
    "\ufdfd" * 20, "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u05d0\u05d1 abc \u0627\u0628", "\ud83d", "\udc69x",
)  # fmt: skip
_LONG = (
    "x" * 7_000 + _IMAGE, "<" * 7_000, "&lt;" * 2_000, "\n" * 3_000 + _SCRIPT, "<b>" * 2_500, "[" * 7_000,
    '{"a":' * 1_500, "<tool_response>" * 500, "<tool_call>" * 700, "w " * 3_500, "\u202e" * 3_000,
)  # fmt: skip
TEXTS = tuple(dict.fromkeys((*_ELEMENTS, *_CLOSERS, *_SCHEMES, *_SIGNS, *_NAMES, *_SYNTAX, *_LONG)))
assert len(TEXTS) >= 300


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

    def _open(self, purpose: Any, *, stage: int = RL, samples: int, problem: int | None = None) -> GroupOpened:
        number, self._number = self._number, self._number + 1
        text, name = self.asked, f"s{stage}-g{number:06d}"
        asked = Problem(text, text, text, text, {"subject": text})
        group = GroupOpened(name, stage, number, purpose, asked, samples, PolicyVersion(1, self.version))
        self.journal.open_group(name, stage, number, purpose, encode_stored(group))
        return group

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
        step = Step(self.version, tuple(trained), tuple(decided), (), tuple(0 for _ in trained), 1)
        self.journal.close_step(self.version, RL, trained, decided, step_figures(rollouts, step))
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
        for number, text in enumerate(TEXTS):
            row = {"kind": "step", "stage": text, "version": 9 + number, text: text, "success": 0.5, "rollouts": 2}
            rate = {f"success_{text}_greedy{end}": 0.5 for end in ("", "_low", "_high")}
            held = {"kind": "evaluation", "stage": text, **rate, f"problems_{text}_greedy": 9}
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
