"""The page in the hands of people: every filter, branches, keyboard alone, screen readers, narrow screens, contrast."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.roc_filter.replay import decode_stored, encode_stored
from agent_rl.figures import TrainingFigures
from agent_rl.groups.statistics import RolloutFigures
from agent_rl.messages import Branch, ToolCallRecord
from agent_rl.observe.report import write_report
from tests import builders
from tests.agent_rl.observe.hostile_run import HostileRun
from tests.agent_rl.observe.test_report_browser import OPENED, STATUS, TOO_WIDE, choose
from tests.agent_rl.records.report_runs import RL, judgement, trajectory
from tests.browser import CHROMIUM, Browser

AXE = Path(__file__).parents[3] / ".venv-clients" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here to look at the page with; install the package chromium"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with groups of two environments, failed calls, an alarm, and a rollout with two branches."""
    run = HostileRun(tmp_path_factory.mktemp("run")).timeline()
    run.enter(RL)
    failed = ToolCallRecord(1, "python", "error", 0.1, 0.2, response="no")
    run.asked = "sums"
    run.step([[0, 1]], ["call", "<tool_response>no</tool_response>", "done"], [failed], mismatch_cause="older weights")
    run.asked = "words"
    run.step([[0, 1, 1, 0], [1, 1]], ["a long answer " * 9])
    run.asked = "tree"
    group = run._open("train", samples=1)
    made = trajectory(group, 0, ["first", "<tool_response>told</tool_response>", "then"])
    made = builders.repacked(
        made,
        branches=np.array([[0, 2, 5], [1, 3, made.response_length - 4]], dtype=np.int32),
        loss_mask=np.array([1] * 5 + [0] * (made.response_length - 9) + [1] * 4, dtype=np.uint8),
    )
    made = replace(made, branches=(Branch("sub_agent", ()), Branch("compaction", (2,))))
    run.journal.add_trajectory(made.group, 0, 0, made.status, encode_stored(made), judgement(1.0))
    run.journal.ready(made.group, [(0, 0)], [1.0], run.version, 1)
    run.close_step([made.group], [made.group], [RolloutFigures.of(made, group).judged(judgement(1.0))])
    run.journal.step_trained(run.version, TrainingFigures(entropy=0.5, policy_gap=0.001))
    return write_report(run.close(), decode_stored).as_uri()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path)
    yield made
    made.close()


def shown(browser: Browser, page: str, width: int = 1280, **how: Any) -> None:
    """Load the page, and wait for its list."""
    browser.show("about:blank", width)
    browser.show(page, width, **how)
    browser.until(f"{STATUS}.startsWith('9 of 9 trajectories')")


def test_each_filter_leaves_what_it_names(browser: Browser, page: str) -> None:
    shown(browser, page)
    for name, value, left in (
        ("success", "1", 6), ("success", "0", 3), ("environment", "sums", 2), ("environment", "words", 6),
        ("subject", "tree", 1), ("errors", "1", 2), ("errors", "0", 7), ("least", "100", 6), ("most", "99", 3),
        ("from", "2", 7), ("to", "1", 2), ("kept", "1", 7), ("kept", "0", 0), ("fate", "all_right", 2),
        ("status", "finished", 9), ("purpose", "train", 9), ("q", "SUMS", 2),
    ):  # fmt: skip
        assert choose(browser, name, value).startswith(f"{left} of 9"), (name, value)
        assert browser.evaluate("document.querySelectorAll('.explorer tbody tr').length") == left
        assert choose(browser, name, "").startswith("9 of 9")
    assert choose(browser, "environment", "words").startswith("6 of")
    assert choose(browser, "success", "0").startswith("2 of")  # filters add up


def test_a_rollout_with_branches_says_where_each_begins_and_why(browser: Browser, page: str) -> None:
    shown(browser, page)
    choose(browser, "environment", "tree")
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    browser.until(OPENED)
    said = browser.evaluate("[...document.querySelectorAll('.detail .branch')].map((each) => each.textContent)")
    assert said == [
        "branch 1 (sub agent), after 2 tokens of sequence 0", "branch 2 (compaction), after 3 tokens of sequence 1",
    ]  # fmt: skip
    kinds = browser.evaluate("[...document.querySelectorAll('.detail ol section')].map((each) => each.className)")
    assert kinds == ["model", "branch", "tool", "branch", "model"]


def test_links_lead_within_the_page_and_to_what_raises_an_alarm(browser: Browser, page: str) -> None:
    shown(browser, page)
    links = set(browser.evaluate("[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))"))
    assert links >= {"#main", "#alarms", "#trajectories"}
    assert all(link.startswith("#") and browser.evaluate(f"!!document.querySelector('{link}')") for link in links)
    browser.evaluate("document.querySelector('.alarms a').click()")
    assert browser.until("document.querySelector('#alarms').open")
    assert "the numerics guard has found a fault" in browser.evaluate("document.querySelector('#alarms').textContent")


KEYS = {"Tab": 9, "Enter": 13, "ArrowDown": 40}


def press(browser: Browser, key: str) -> str:
    """Press a key; the control that has the focus then."""
    code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], **({"text": "\r"} if key == "Enter" else {})}
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, **code)
    focus = browser.evaluate(
        "(() => { const at = document.activeElement, style = getComputedStyle(at);"
        "return [at.localName, at.className, at.name ?? '', at.textContent.slice(0, 40), style.outlineStyle]; })()"
    )
    assert focus[-1] != "none", focus  # what has the focus is seen
    return " ".join(focus)


def tab_to(browser: Browser, words: str) -> None:
    """Press Tab until a control with these words has the focus."""
    for _ in range(200):
        if words in press(browser, "Tab"):
            return
    raise AssertionError(words)


def test_the_keyboard_alone_opens_colours_and_closes_a_trajectory(browser: Browser, page: str) -> None:
    shown(browser, page, 360)
    assert "Skip to the content" in press(browser, "Tab")
    tab_to(browser, " q ")
    browser.call("Input.insertText", text="words")
    browser.until(f"{STATUS}.startsWith('6 of 9')")
    tab_to(browser, "button link")
    press(browser, "Enter")
    browser.until(OPENED)
    assert "detail" in browser.evaluate("document.activeElement.className")
    tab_to(browser, "colour tokens by")
    press(browser, "ArrowDown")
    browser.until("document.querySelectorAll('.detail .legend').length")
    assert browser.evaluate("document.activeElement.name") == "colour tokens by"
    assert browser.evaluate("document.activeElement.value") == "log-probability"
    tab_to(browser, "close")
    press(browser, "Enter")
    assert browser.evaluate("document.querySelector('.detail').hidden")
    assert browser.evaluate("document.activeElement.className") == "link"


@pytest.mark.slow
@pytest.mark.skipif(not AXE.exists(), reason="no axe-core: make test-all installs it where there is npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_that_keeps_people_out(browser: Browser, page: str, width: int, scheme: str) -> None:
    """Names of controls, heads of tables, texts for charts, order of headings, contrast, and more."""
    shown(browser, page, width, scheme=scheme, touch=width < 500)
    browser.evaluate('document.querySelectorAll("details").forEach((each) => { each.open = true; })')
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    browser.until(OPENED)
    browser.evaluate(f"{AXE.read_text()}; 0")
    for colouring in ("nothing", "log-probability", "policy version", "advantage"):
        browser.evaluate(
            "(() => { const colour = document.querySelector('.detail [name^=colour]');"
            f"colour.value = '{colouring}'; colour.dispatchEvent(new Event('change')); }})()"
        )
        browser.until(
            f"(document.querySelectorAll('.detail .legend').length > 0) === {json.dumps(colouring != 'nothing')}"
        )
        found = browser.evaluate(
            "axe.run(document).then(({ passes, violations }) => [passes.length, violations.map((each) =>"
            "[each.id, each.nodes.map((node) => node.html.slice(0, 200) + node.failureSummary).slice(0, 3)])])"
        )
        assert found[0] > 20
        assert found[1] == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(TOO_WIDE) == []
