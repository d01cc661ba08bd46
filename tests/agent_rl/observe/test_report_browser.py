"""The report in a real browser, which needs Chromium: nothing wider than a phone, no error said, charts that answer, every
filter, branches, keyboard alone, screen readers, contrast.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
from agent_rl.observe.words import visible
from agent_rl_contract import builders
from tests.agent_rl.observe.hostile_run import HostileRun
from tests.agent_rl.observe.test_report import HOSTILE
from tests.agent_rl.records.report_runs import AFTER, BEFORE, RL, SFT, SyntheticRun, judgement, trajectory
from tests.browser import CHROMIUM, SECONDS, Browser

AXE = Path(__file__).parents[3] / ".venv-clients" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium here to look at the page with; install the package chromium"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


def written(folder: Path, steps: int) -> Path:
    """A run with everything in it, hostile texts and long words too."""
    words = ["".join(each).encode(errors="replace").decode() for each in HOSTILE]
    call = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': 'x' * 500}})}</tool_call>"
    pieces = [call + " ".join(words), f"<tool_response>{'y' * 500}{''.join(words)}</tool_response>", "z" * 500]
    run = SyntheticRun(folder).timeline(300)
    run.enter(SFT)
    run.version = 1
    run.enter(BEFORE, loss=0.25)
    run.evaluate(BEFORE, [0, 1, 0, 1, 1], pieces)
    run.enter(RL)
    for _ in range(steps):
        run.step([[0, 1, 0, 1], [1, 1, 1, 1]], pieces)
    run.enter(AFTER)
    run.evaluate(AFTER, [1, 1, 0, 1, 1], pieces)
    directory = run.close()
    settings = json.loads((directory / "topology.json").read_text())
    (directory / "topology.json").write_text(json.dumps({**settings, "a" * 300: "b" * 300}))
    return directory


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run of 200 steps."""
    return write_report(written(tmp_path_factory.mktemp("run"), 200), decode_stored).as_uri()


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps."""
    return written(tmp_path_factory.mktemp("short"), 20)


TOO_WIDE = """
[...document.querySelectorAll("body *")].filter((element) => {
  const box = element.getBoundingClientRect();
  return box.width > 0 && !element.closest(".uplot") && !element.matches(".skip")
    && (box.right > document.documentElement.clientWidth + 1 || box.left < -1);
}).map((element) => element.outerHTML.slice(0, 120))
"""


DRAWN = """
[...document.querySelectorAll("canvas")].filter((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return canvas.clientWidth > 200 && pixels.some((value) => value > 0);
}).length
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen_and_nothing_is_complained_of(
    browser: Browser, page: str, width: int, scheme: str
) -> None:
    browser.show(page, width, scheme=scheme, touch=width < 500)
    browser.evaluate('document.querySelectorAll("details").forEach((each) => { each.open = true; })')
    assert browser.evaluate(TOO_WIDE) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(DRAWN) >= 10
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map((each) => each.textContent)")
    assert headings == [
        "Is it learning", "Is it healthy", "Where time goes", "Topology", "Staleness and fates", "Trajectories",
        "What it was made with",
    ]  # fmt: skip
    assert json.dumps(browser.complaints()) == "[]"
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness > 384) == (scheme == "light")


@pytest.mark.slow
def test_a_chart_says_its_figures_where_it_is_pointed_at_and_by_arrow_keys(browser: Browser, page: str) -> None:
    browser.show(page, 1280)
    first = "document.querySelector('#learning figure')"
    said = f"{first}.querySelector('output').textContent"
    browser.evaluate(f"{first}.scrollIntoView()")
    box = browser.evaluate(f"{first}.querySelector('.u-over').getBoundingClientRect().toJSON()")

    def point(x: float, y: float) -> str:
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["left"] + x, y=box["top"] + y)
        found: str = browser.evaluate(f"new Promise(requestAnimationFrame).then(() => {said})")
        return found

    last = browser.evaluate(said)
    assert last.startswith("steps 199 to 200: 75.0")
    middle = point(box["width"] / 2, 5.0)
    assert middle.startswith(("steps 99 to 100: ", "steps 101 to 102: "))
    evaluated = 0.02 * 200 / (1.04 * 200) * box["width"] - 5  # the circle of step 0
    assert point(evaluated, box["height"] * (1 - 0.6)).startswith("evaluation before, sampled, after 0 steps: 60.0")
    point(box["width"] / 2, 5.0)
    browser.evaluate(f"{first}.querySelector('.plot').focus()")
    for key, expected in (("ArrowLeft", None), ("End", last)):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        now = browser.evaluate(f"new Promise(requestAnimationFrame).then(() => {said})")
        assert now == expected or (expected is None and now not in {last, middle})


@pytest.mark.slow
def test_no_script_of_a_trajectory_could_be_run(browser: Browser, page: str) -> None:
    browser.show(page, 1280)
    for attempt in ("mine.textContent = 'window.ran = true'", "mine.append('window.ran = true')"):
        browser.evaluate(
            "(() => { const mine = document.createElement('script');"
            f"try {{ {attempt}; }} catch {{}} document.body.append(mine); }})()"
        )
    assert browser.evaluate("window.ran === undefined")
    assert browser.complaints()  # the security policy refused it, and said so: complaints are heard here


@contextmanager
def served(*runs: Path) -> Iterator[str]:
    """The address of the live page of these runs."""
    command = [sys.executable, "-m", "actors.cli", "view", *map(str, runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(SECONDS) == 0


STATUS = "(document.querySelector('.explorer [role=status]')?.textContent ?? '')"
OPENED = "(document.querySelector('.detail h4') && document.querySelector('.detail').textContent)"


def choose(browser: Browser, name: str, value: str) -> str:
    """Set a filter of the list; what it says then."""
    found: str = browser.evaluate(
        f"(() => {{ const input = document.querySelector('.explorer [name={name}]'); input.value = {json.dumps(value)};"
        f"input.dispatchEvent(new Event('input')); return {STATUS}; }})()"
    )
    return found.replace("\u202f", " ")


@pytest.fixture
def live(short: Path) -> Iterator[str]:
    with served(short) as address:
        yield address


def test_the_live_page_lists_filters_and_opens_trajectories(browser: Browser, live: str) -> None:
    browser.show(live, 1280)
    browser.until(f"{STATUS}.startsWith('180 of 180 trajectories')")
    assert browser.until("document.querySelector('.headline').textContent").startswith("Success on held-out")
    assert browser.until("document.querySelectorAll('#learning canvas').length") >= 4
    assert choose(browser, "purpose", "train") == "160 of 180 trajectories, 75.0 % of 160 judged ones right"
    assert choose(browser, "success", "0").startswith("40 of ")
    assert choose(browser, "from", "20").startswith("2 of ")
    assert choose(browser, "q", "nothing has these words").startswith("0 of ")
    assert choose(browser, "q", "").startswith("2 of ")
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    opened = browser.until(OPENED)
    assert "Kept: one of the 4 rollouts that its group kept." in opened
    for words in HOSTILE:
        assert visible(words.encode(errors="replace").decode()) in opened
    address = browser.evaluate("location.href")
    browser.show("about:blank", 1280)
    browser.show(address, 1280)  # a link that was shared
    browser.until(f"{STATUS}.startsWith('2 of 180')")
    assert browser.until(OPENED) == opened
    browser.evaluate("[...document.querySelectorAll('.detail button')].find((b) => b.textContent.includes('beside') || "
                     "b.textContent.includes('side by side')).click()")  # fmt: skip
    assert browser.until("document.querySelectorAll('.detail .rollouts > li').length === 4")
    for colouring, kind in (("policy version", "version"), ("advantage", "cool2")):
        browser.evaluate(
            f"(() => {{ const colour = document.querySelector('.detail [name^=colour]'); colour.value = '{colouring}';"
            "colour.dispatchEvent(new Event('change')); })()"
        )
        assert browser.until(f"document.querySelectorAll('.detail .{kind}').length")
        assert ", version " in browser.evaluate(f"document.querySelector('.detail .{kind}').title")
    assert browser.evaluate("document.scripts.length") == 2
    assert json.dumps(browser.complaints()) == "[]"
    browser.show("about:blank", 1280)  # lets go of the events before their server ends


def test_a_saved_page_opens_the_trajectories_that_it_holds(browser: Browser, short: Path) -> None:
    browser.show(write_report(short, decode_stored).as_uri(), 390, touch=True)
    browser.until(f"{STATUS}.startsWith('180 of 180 trajectories')")
    choose(browser, "to", "1")
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    assert "Kept: one of the 4" in browser.until(OPENED)
    choose(browser, "to", "")
    choose(browser, "from", "10")
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    assert "this file left it out" in browser.until(f"({OPENED} ?? '').includes('left it out') && {OPENED}")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert json.dumps(browser.complaints()) == "[]"


# In the hands of people ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> str:
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


def shown(browser: Browser, used: str, width: int = 1280, **how: Any) -> None:
    """Load the page, and wait for its list."""
    browser.show("about:blank", width)
    browser.show(used, width, **how)
    browser.until(f"{STATUS}.startsWith('9 of 9 trajectories')")


def test_each_filter_leaves_what_it_names(browser: Browser, used: str) -> None:
    shown(browser, used)
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


def test_a_rollout_with_branches_says_where_each_begins_and_why(browser: Browser, used: str) -> None:
    shown(browser, used)
    choose(browser, "environment", "tree")
    browser.evaluate("document.querySelector('.explorer tbody .link').click()")
    browser.until(OPENED)
    said = browser.evaluate("[...document.querySelectorAll('.detail .branch')].map((each) => each.textContent)")
    assert said == [
        "branch 1 (sub agent), after 2 tokens of sequence 0", "branch 2 (compaction), after 3 tokens of sequence 1",
    ]  # fmt: skip
    kinds = browser.evaluate("[...document.querySelectorAll('.detail ol section')].map((each) => each.className)")
    assert kinds == ["model", "branch", "tool", "branch", "model"]


def test_links_lead_within_the_page_and_to_what_raises_an_alarm(browser: Browser, used: str) -> None:
    shown(browser, used)
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


def test_the_keyboard_alone_opens_colours_and_closes_a_trajectory(browser: Browser, used: str) -> None:
    shown(browser, used, 360)
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
def test_axe_finds_nothing_that_keeps_people_out(browser: Browser, used: str, width: int, scheme: str) -> None:
    """Names of controls, heads of tables, texts for charts, order of headings, contrast, and more."""
    shown(browser, used, width, scheme=scheme, touch=width < 500)
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
