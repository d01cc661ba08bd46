"""The report in a real browser: nothing wider than a phone, no error said, charts that answer. Needs Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.observe.report import write_report
from agent_rl.observe.words import visible
from tests.agent_rl.observe.test_report import HOSTILE
from tests.agent_rl.records.report_runs import AFTER, BEFORE, RL, SFT, SyntheticRun
from tests.browser import CHROMIUM, SECONDS, Browser

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


@pytest.fixture
def served(short: Path) -> Iterator[str]:
    """The address of the run's live page."""
    command = [sys.executable, "-m", "actors.cli", "view", str(short), "--port", "0"]
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


def test_the_live_page_lists_filters_and_opens_trajectories(browser: Browser, served: str) -> None:
    browser.show(served, 1280)
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
