"""Many hostile texts of problems, models, tools, actors and settings stay texts, in the file and in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.observe.report import html, read_page, samples, write_report
from agent_rl.observe.words import visible
from agent_rl.records import retention
from tests.agent_rl.observe.hostile_run import AWAY, TEXTS, hostile_run, sent
from tests.agent_rl.observe.test_report import Parts
from tests.agent_rl.observe.test_report_browser import STATUS, served
from tests.agent_rl.records.report_runs import strings, whole
from tests.browser import CHROMIUM, Browser

NAMES = ("<img src=x onerror=window.ran=1>", "__proto__")
"""Names of two run directories that differ in their settings."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("run0"), NAMES[0])


def short(text: str) -> str:
    """A text as every place shows it: what messages carry of it, visible, and no more than the shortest cut."""
    return visible(sent(text))[:80]


def test_no_text_becomes_a_part_of_the_file(run: Path, tmp_path: Path) -> None:
    page = read_page(run, decode_stored)[1]
    made = html(page)
    parts = Parts(made)
    honest = whole(tmp_path / "honest")
    assert parts.elements == Parts(html(read_page(honest, decode_stored)[1])).elements
    island, _ = parts.texts["script"]
    assert not re.search("[<>&]", island)
    held = json.loads(island)
    (listed,) = [block["explorer"] for each in held["sections"] for block in each["blocks"] if "explorer" in block]
    assert len(listed["rows"]) == 2 * len(TEXTS) + 4
    shown = "\0".join(set(strings(held)))
    for text in TEXTS:
        assert short(text) in shown
        assert visible(text) in held["settings"]
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", made)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path)
    made.call("Network.enable")
    yield made
    made.close()


@pytest.fixture(params=["saved", "live"])
def address(
    request: pytest.FixtureRequest, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of the page that holds everything."""
    if request.param == "saved":
        monkeypatch.setattr(retention, "SAMPLES_TRAINED", len(TEXTS))
        monkeypatch.setattr(samples, "TRANSCRIPT_CHARACTERS", 1 << 30)
        yield write_report(run, decode_stored).as_uri()
        return
    other = hostile_run(tmp_path / "run1", NAMES[1])
    with served(run, other) as live:
        yield live


WALK = """
(async () => {
  const wait = (found) => new Promise((resolve) => {
    const look = () => (found() ? resolve(found()) : setTimeout(look, 1));
    look();
  });
  const more = () => [...document.querySelectorAll(".explorer > button")].find((each) => !each.hidden);
  while (more()) more().click();
  const texts = [];
  const detail = document.querySelector(".detail");
  const keys = [...document.querySelectorAll(".explorer tbody tr[data-key$='.0.0'] .link")];
  for (const [index, link] of [...keys.entries()].slice(FROM, FROM + 20)) {
    const key = link.closest("tr").dataset.key;
    link.click();
    const said = await wait(() => detail.querySelector("h3")?.textContent.endsWith(key) && detail.textContent);
    const changed = async (select, value) => {
      const old = detail.querySelector("ol.rollouts");
      const made = detail.querySelector(`select[name^="${select}"]`);
      made.value = value;
      made.dispatchEvent(new Event("change"));
      await wait(() => detail.querySelector("ol.rollouts") && detail.querySelector("ol.rollouts") !== old);
    };
    if (index % 10 === 0) {
      await changed("colour", ["log-probability", "policy version", "advantage", "nothing"][index / 10 % 4]);
      await changed("text", index / 10 % 3 ? "turns" : "raw");
    }
    texts.push(said + detail.textContent);
  }
  return texts;
})()
"""
ODD = """
[...document.body.querySelectorAll("*")].filter((each) => {
  const name = each.localName;
  const known = "a article b button canvas code dd details div dl dt figure footer form h1 h2 h3 h4 header i input label li"
    + " main meter nav noscript ol option output p pre script section select span style summary table tbody td th thead tr"
    + " ul caption svg path defs marker";
  return !known.split(" ").includes(name) || each.getAttributeNames().some((one) => /^(on|src|srcdoc|style$)/.test(one)
    && !each.closest(".uplot")) || (each.href?.baseVal ?? each.href ?? "#").match(/^(javascript|data):/i)
    || (name === "svg" && !each.matches(".arrows"));
}).map((each) => each.outerHTML.slice(0, 200))
"""
CANARY = """
[window.ran, Object.keys(Object.prototype), {}.polluted, document.scripts.length, document.images.length,
 document.getElementById("main").localName, document.getElementById("data").localName]
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to look at the page with; install the package chromium")
def test_a_browser_shows_every_text_as_text(browser: Browser, address: str) -> None:
    browser.show(address, 1280)
    browser.until(f"{STATUS}.includes('of {2 * len(TEXTS) + 4} trajectories')")
    others = "document.querySelectorAll('main > section:not(#trajectories)').forEach((each) => { each.hidden = %s; })"
    browser.evaluate(others % "true")  # hundreds of layouts of all of it would take minutes
    opened: list[str] = []
    while found := browser.evaluate(WALK.replace("FROM", str(len(opened)))):
        opened += found
    browser.evaluate(others % "false")
    everything = browser.evaluate("document.body.textContent")
    for text in TEXTS:
        assert any(short(text).strip() in each for each in opened), text[:80]
        assert short(text).strip() in everything
    lines = browser.evaluate(
        "[...document.querySelectorAll('.explorer select option')].map((each) => each.textContent)"
    )
    assert "function" not in "".join(lines)
    if not address.startswith("file:"):
        browser.until("document.querySelector('select[name=run]').options.length === 2")
        compared = browser.evaluate("document.querySelector('#made').textContent")
        assert "run0" in compared
        assert "run1" in compared
        browser.evaluate("(() => { const run = document.querySelector('select[name=run]'); run.value = '1';"
                         "run.dispatchEvent(new Event('change')); })()")  # fmt: skip
        assert browser.until("document.querySelector('h1').textContent") == "Run __proto__"
    browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    said = [each for each in browser.complaints() if "Throttling navigation" not in json.dumps(each)]  # by this haste
    assert json.dumps(said) == "[]"
    detail = "document.querySelector('.detail').textContent"
    for each, shown in (("open=__proto__", f"{detail}.includes('__proto__')"),
                        ("open=constructor.0.0", f"{detail}.match(/constructor.0.0.*not hold/)"),
                        ("sort=__proto__&fate=constructor&q=%3Cimg%3E", f"{STATUS}.startsWith('0 of')")):  # fmt: skip
        browser.evaluate(f"location.hash = '#trajectories?{each}'")
        browser.until(shown)
    assert browser.evaluate(ODD) == []
    assert browser.evaluate(CANARY) == [None, [], None, 2, 0, "main", "script"]
    asked = [event["params"]["request"]["url"] for event in browser.events
             if event.get("method") == "Network.requestWillBeSent"]  # fmt: skip
    own = address.partition("#")[0]
    assert [url for url in asked if not url.startswith((own, "data:,"))] == []
    assert not [url for url in asked if AWAY.strip("/") in url.partition("?")[0]]
    never = {"Page.javascriptDialogOpening", "Runtime.exceptionThrown"}
    assert [event for event in browser.events if event.get("method") in never] == []
    browser.show("about:blank", 1280)  # lets go of the events before their server ends
