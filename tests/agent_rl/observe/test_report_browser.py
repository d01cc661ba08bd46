"""The report in a real browser: nothing wider than a phone, no error said, charts that answer. Needs Chromium."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.observe.report import write_report
from agent_rl.observe.words import visible
from tests.agent_rl.observe.test_report import HOSTILE
from tests.agent_rl.records.report_runs import AFTER, BEFORE, RL, SFT, SyntheticRun

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 60.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium here to look at the page with; install the package chromium"
    ),
]


class Browser:
    """Chromium's DevTools protocol over its debugging pipe: JSON messages that end with a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        options += "--disable-component-update --disable-sync --remote-debugging-pipe"
        # Chromium reads from descriptor 3 and writes to 4.
        command = f'exec "$0" {options} --user-data-dir="$1" about:blank 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM, str(profile)],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=SECONDS)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def show(self, path: Path, width: int, height: int = 900, *, scheme: str = "light", touch: bool = False) -> None:
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def complaints(self) -> list[Any]:
        """What the console, the log and the auditor said."""
        said = [event for event in self.events if event.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}]
        said += [event for event in self.events if event.get("method") == "Runtime.consoleAPICalled"]
        return said + [event for event in self.events if event.get("method") == "Audits.issueAdded"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium said nothing for {SECONDS} s"
            received = os.read(self._in, 1 << 16)
            assert received, "Chromium has gone"
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it, hostile texts and long words too."""
    words = ["".join(each).encode(errors="replace").decode() for each in HOSTILE]
    call = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': 'x' * 500}})}</tool_call>"
    pieces = [call + " ".join(words), f"<tool_response>{'y' * 500}{''.join(words)}</tool_response>", "z" * 500]
    run = SyntheticRun(tmp_path_factory.mktemp("run")).timeline(300)
    run.enter(SFT)
    run.version = 1
    run.enter(BEFORE, loss=0.25)
    run.evaluate(BEFORE, [0, 1, 0, 1, 1], pieces)
    run.enter(RL)
    for _ in range(200):
        run.step([[0, 1, 0, 1], [1, 1, 1, 1]], pieces)
    run.enter(AFTER)
    run.evaluate(AFTER, [1, 1, 0, 1, 1], pieces)
    directory = run.close()
    settings = json.loads((directory / "topology.json").read_text())
    (directory / "topology.json").write_text(json.dumps({**settings, "a" * 300: "b" * 300}))
    return write_report(directory, decode_stored)


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen_and_nothing_is_complained_of(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    browser.show(page, width, scheme=scheme, touch=width < 500)
    browser.evaluate('document.querySelectorAll("details").forEach((each) => { each.open = true; })')
    assert browser.evaluate(TOO_WIDE) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(DRAWN) >= 10
    assert json.dumps(browser.complaints()) == "[]"
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness > 384) == (scheme == "light")


def test_a_chart_says_its_figures_where_it_is_pointed_at_and_by_arrow_keys(browser: Browser, page: Path) -> None:
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


def test_texts_of_models_are_shown_as_they_are(browser: Browser, page: Path) -> None:
    browser.show(page, 1280)
    shown = browser.evaluate("[...document.querySelectorAll('.model pre')].map((each) => each.textContent).join('')")
    for words in HOSTILE:
        assert visible(words.encode(errors="replace").decode()) in shown
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map((each) => each.textContent)")
    assert headings == [
        "Learning", "Curves", "Who worked, who waited for whom", "Groups by fate", "Trajectories",
        "What it was made with",
    ]  # fmt: skip
    assert browser.evaluate("document.querySelector('.headline').textContent").startswith("Success on held-out")


def test_no_script_of_a_trajectory_is_run_or_could_be(browser: Browser, page: Path) -> None:
    browser.show(page, 1280)
    assert browser.evaluate("document.scripts.length") == 2  # the JSON object, and the script
    assert browser.evaluate("document.images.length") == 0
    for attempt in ("mine.textContent = 'window.ran = true'", "mine.append('window.ran = true')"):
        browser.evaluate(
            "(() => { const mine = document.createElement('script');"
            f"try {{ {attempt}; }} catch {{}} document.body.append(mine); }})()"
        )
    assert browser.evaluate("window.ran === undefined")
    assert browser.complaints()  # the security policy refused it, and said so: complaints are heard here
