"""A run under way is changed from its page: scaled, swapped and stopped over HTTP, and by hand in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.browser import CHROMIUM, Browser
from tests.actors.sandbox.running import commands
from tests.end_to_end.processes import (
    CALLS_TOOLS,
    ROOM,
    SECONDS,
    balanced,
    check_trained_once,
    finish,
    kill,
    more_steps,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

SEVERAL = ["actors.tool_executor.replicas=3", "actors.tool_executor.start=1"]


class Page(NamedTuple):
    """A viewer that takes changes."""

    process: subprocess.Popen[str]
    address: str
    key: str

    def change(self, key: str = "", **change: Any) -> tuple[int, dict[str, list[str]]]:
        """Status and answer of a change."""
        headers = {"Origin": self.address.rstrip("/"), "Authorization": f"Bearer {key or self.key}"}
        body = json.dumps({"run": 0} | change).encode()
        request = urllib.request.Request(f"{self.address}change", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=4 * SECONDS) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextlib.contextmanager
def viewed(directory: Path, temporary: Path) -> Iterator[Page]:
    command = [sys.executable, "-m", "actors.cli", "view", str(directory), "--port", "0", "--control"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address, key = process.stdout.readline().strip(), process.stdout.readline().rpartition(" ")[2].strip()
        try:
            yield Page(process, address, key)
        finally:
            process.kill()


@pytest.mark.slow
def test_a_run_is_scaled_swapped_and_stopped_from_its_page_and_balances(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    process = start(path, *ROOM, *SEVERAL, TMPDIR=str(temporary))
    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        with viewed(directory, temporary) as page:
            assert page.change(key="wrong", change="stop")[0] == 401
            status, said = page.change(change="scale", role="learner", number=2)
            assert (status, said["done"]) == (200, [])
            assert "exactly one learner" in said["refused"][0]
            status, said = page.change(change="scale", role="tool_executor", number=2)
            assert (status, said["refused"]) == (200, []), said
            assert said["done"][-1] == "tool_executor has 2 processes"
            more_steps(directory, 1)
            filter_class = "tests.end_to_end.swapped:OtherFilter"
            swap = {"change": "swap", "role": "roc_filter", "class": filter_class, "settings": [], "fresh": False}
            status, said = page.change(**swap)
            assert (status, said["refused"]) == (200, []), said
            assert f"roc_filter.0 is now {filter_class}" in said["done"][0]
            more_steps(directory, 1)
        more_steps(directory, 1)  # the viewer was killed
        with viewed(directory, temporary) as page:
            status, said = page.change(change="stop")
            assert (status, said["refused"]) == (200, []), said
            assert said["done"][0].startswith("the run stops in order; continue with: agent-rl run ")
            ended = finish(process)
            assert "no run is under way" in page.change(change="stop")[1]["refused"][0]
    finally:
        kill(process)
    assert "stopping, as a command asks; continue with: agent-rl run" in " ".join(ended.all.split())
    assert "starting it again" not in ended.all  # nobody died
    done = steps_trained(directory)
    finish(start(path, *ROOM, *SEVERAL, f"stages.0.steps={done + 2}", TMPDIR=str(temporary)))
    balanced(directory, steps=done + 2)
    check_trained_once(directory)


@pytest.mark.slow
def test_the_page_that_a_run_offers_ends_with_it_even_when_the_run_is_killed(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    command = [sys.executable, "-m", "actors.cli", "run", str(path), "--view"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = next(line for line in process.stdout if "look at it in a browser" in line).split()[-1]
        assert commands(b"--descriptor", bytes(directory)) == []
        with urllib.request.urlopen(address, timeout=SECONDS) as page:
            assert "connect-src 'self'" in page.read().decode()
        assert len(commands(b"--descriptor", bytes(directory))) == 1
        process.kill()
        process.communicate()
    wait_for(lambda: commands(b"--descriptor", bytes(directory)) == [], "the page to end")


SAID = "(document.querySelector('.changes li')?.textContent ?? '')"
CARD = "(document.querySelector('[data-role=tool_executor] h3')?.textContent ?? '')"


def fill(form: str, **values: str) -> str:
    """A script that fills a form of the page and sends it."""
    lines = [f"f.querySelector('[aria-label={name}]').value = {json.dumps(value)};" for name, value in values.items()]
    ticks = "f.querySelectorAll('[required][type=checkbox]').forEach((each) => each.click());"
    return f"(() => {{ const f = document.forms['{form}']; {''.join(lines)} {ticks} f.requestSubmit(); }})()"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to look at the page with; install the package chromium")
def test_a_run_is_changed_by_hand_in_a_browser(tmp_path: Path, temporary: Path) -> None:
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    browser = Browser(tmp_path / "profile")
    process = start(path, *ROOM, *SEVERAL, TMPDIR=str(temporary))

    def give(key: str) -> None:
        browser.evaluate(
            f"(() => {{ const given = document.querySelector('.control [type=password]'); given.value = {json.dumps(key)};"
            "given.form.querySelector('button').click(); })()"
        )

    try:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        with viewed(directory, temporary) as page:
            browser.show(page.address, 1280)
            browser.until(f"{CARD}.includes('tool_executor')")
            browser.evaluate("document.querySelector('.control').open = true")
            assert browser.evaluate("document.querySelector('.control fieldset').disabled")
            give("wrong")
            browser.evaluate(fill("scale", role="tool_executor", processes="2"))
            assert "is not the key" in browser.until(f"{SAID}.startsWith('refused') && {SAID}")
            assert browser.evaluate("document.querySelector('.control fieldset').disabled")  # the wrong key is let go
            assert "401" in json.dumps(browser.complaints())  # Chromium logs it
            browser.show(page.address, 1280)
            browser.until(f"{CARD}.includes('tool_executor')")
            give(page.key)
            assert not browser.evaluate("document.querySelector('.control fieldset').disabled")
            browser.evaluate(fill("drain", host="local"))
            assert "stop the run instead" in browser.until(f"{SAID}.startsWith('refused') && {SAID}")
            browser.evaluate(fill("scale", role="tool_executor", processes="3"))
            done = browser.until(f"{SAID}.startsWith('done') && {SAID}")
            assert "tool_executor has 3 processes" in done
            browser.until(f"{CARD}.endsWith(' 3')")
            kept = browser.evaluate(
                "[location.href, ...Object.values(localStorage), ...Object.values(sessionStorage),"
                "document.documentElement.outerHTML, ...[...document.querySelectorAll('input')].map((i) => i.value)]"
            )
            assert page.key not in "\n".join(kept)
            browser.evaluate(fill("stop"))
            assert "the run stops in order" in browser.until(f"{SAID}.startsWith('done') && {SAID}")
            finish(process)
            browser.until(
                "document.querySelector('.control [role=status]').textContent === 'The run does not run now.'"
            )
            assert browser.evaluate("document.querySelector('.control fieldset').disabled")
            assert json.dumps(browser.complaints()) == "[]"
            browser.show("about:blank", 1280)
    finally:
        kill(process)
        browser.close()
