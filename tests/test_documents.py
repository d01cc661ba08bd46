"""What documents name is there, and a measured figure names the command that prints it. The site of docs/ is built without
a warning, loads nothing from elsewhere, and a broken link breaks the build.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md"), ROOT / "README.md"])
PLACE = re.compile(r"`((?:agent_rl|actors|transport|benchmarks|examples|docs|tests)/[\w./-]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(text: str) -> set[str]:
    titles = re.findall(r"(?m)^#+ +(.*)$", text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_files_and_headings_that_a_document_names_are_there(document):
    text = document.read_text()
    missing = [place for place in PLACE.findall(text) if not (ROOT / place).exists()]
    for file, heading in LINK.findall(text):
        target = document.parent / file if file else document
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target.read_text())):
            missing.append(f"{file}#{heading}")
    assert not missing


COMMAND = re.compile(r"`[^`]*(?:agent-rl [a-z]+|make [a-z][\w-]*|python -m [a-z]+)[^`]*`")
FIGURE = re.compile(
    r"\d[\d,.]*\s?(?:%|[kKMG]i?B\b|µs\b|ms\b|s\b|minutes?\b|times\b|points?\b|a second\b|[A-Za-z]* ?[A-Za-z]+/s\b|/s\b)"
)
RATE = re.compile(r"\d[\d,.]*\s?(?:µs\b|ms\b|[A-Za-z]+/s\b|/s\b)")
"""Units of what was measured wherever they stand; other units are those of limits and settings as well."""
OF_MEASUREMENTS = {"README.md", "docs/measurements.md"}
GENERATED = {
    f"docs/{name}.md"
    for name in ("command_line", "configuration", "conformance_checks", "families", "messages", "python", "states")
}
MACHINE = re.compile(r"Machine [A-Z]: ")
BLOCK = re.compile(r"(?ms)^```.*?^```$|^#[^\n]*$|(?:^(?!```|#)[^\n]*\S[^\n]*\n?)+")
ITEM = re.compile(r"(?m)^(?= *(?:[-*]|\d+\.) )")


def figures_without_command(text: str, figure: re.Pattern[str]) -> list[str]:
    """Paragraphs, list items and tables with a figure, but no command from their heading up to and including them.

    A command is set as code or stands in a block of code. What describes the machine needs none.
    """
    found, named = [], False
    for match in BLOCK.finditer(text):
        for block in ITEM.split(match[0]):
            if block.startswith("#"):
                named = False
            elif block.startswith("```"):
                named = named or bool(COMMAND.search(f"`{block.strip('`')}`"))
            else:
                named = named or bool(COMMAND.search(" ".join(block.split())))
                if not named and figure.search(re.sub(r"`[^`]*`", "", block)) and not MACHINE.match(block):
                    found.append(block)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_measured_figure_stands_under_the_command_that_prints_it(document):
    name = str(document.relative_to(ROOT))
    if name not in GENERATED:
        assert figures_without_command(document.read_text(), FIGURE if name in OF_MEASUREMENTS else RATE) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# One\n\nA call takes 7.2 ms.\n", 1),
        ("# One\n\n`agent-rl bench tools`: a call takes 7.2 ms.\n\nIt was 9 %.\n\n- more: 3 s\n", 0),
        ("# One\n\n`agent-rl bench tools`\n\n## Two\n\n| a | b |\n|---|---|\n| 1 | 3,000 calls/s |\n", 1),
        ("# One\n\n- 3.1 minutes\n- `make train`: 3.1 minutes\n- 5 MiB\n", 1),
        ("# One\n\n```\nagent-rl bench tools\n```\n\n1.5 times\n", 0),
        ("Machine A: two cores, 24 GiB\n\nFive seeds, `wall_seconds = 4 s`, group 3.\n", 0),
    ],
)
def test_a_figure_without_a_command_is_found(text, found):
    assert len(figures_without_command(text, FIGURE)) == found


def rows_without_command(text: str) -> list[str]:
    """Rows of tables with the columns ``command`` and ``missing`` that name neither a command nor what is missing."""
    found, columns = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if {"command", "missing"} <= set(cells):
            columns = cells
        elif not cells:
            columns = []
        elif columns and not set(cells[0]) <= set("-: "):
            row = dict(zip(columns, cells, strict=True))
            if not COMMAND.search(row["command"]) and not row["missing"]:
                found.append(line)
    return found


def test_each_figure_of_the_paper_has_a_command_or_says_what_is_missing():
    text = (ROOT / "docs/reproduction.md").read_text()
    assert text.count("| figure of the paper |") == 5
    assert rows_without_command(text) == []
    table = "| figure of the paper | command | missing |\n|---|---|---|\n| 60.9 | none | |\n| 1 | `agent-rl eval` | |\n"
    assert rows_without_command(table) == ["| 60.9 | none | |"]


FOREIGN = {"ecbfb94"}
"""Commits of other projects."""


def git(*words: str, lines: str = "") -> str | None:
    """What git prints; None where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], input=lines, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def test_each_commit_that_a_document_names_exists():
    if (git("rev-parse", "--is-shallow-repository") or "true").strip() == "true":
        pytest.skip("the history is not here")
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    found = {*re.findall(r"\b(?=\d*[a-f])(?=[a-f]*\d)[\da-f]{7}\b|(?<=\()\d{7}(?=\))", text)}
    names = sorted(found - FOREIGN)
    kinds = git("cat-file", "--batch-check=%(objecttype)", lines="".join(f"{name}^{{commit}}\n" for name in names))
    assert names
    assert [name for name, kind in zip(names, kinds.splitlines(), strict=True) if kind != "commit"] == []


def test_each_message_of_the_troubleshooting_page_is_one_of_the_program():
    """Literals that stand beside each other are joined; ``...`` stands for what varies."""
    sources = [path.read_text() for room in ("agent_rl", "actors") for path in (ROOT / room).rglob("*.py")]
    code = re.sub(r'"\s*\n?\s*f?"|\s+', lambda found: " " if found[0].isspace() else "", "\n".join(sources))
    _, table = (ROOT / "docs/troubleshooting.md").read_text().split("\n## By message\n")
    messages = re.findall(r"(?m)^\| `([^`]+)`", table)
    assert len(messages) > 12
    pieces = [piece.strip(" ;(),:") for message in messages for piece in message.split("...")]
    assert [piece for piece in pieces if piece not in code] == []


WORDS, WORDS_OF_A_PAGE = 45_000, 2_500
"""The most that people are asked to read. Pages that are made from the code are not counted: they are for looking
things up, nobody reads them from end to end, and their words are those of the code. A word has a letter or a digit: the
bars of tables are none.
"""


def test_documents_are_short_enough_to_be_read(record_property):
    pages = {str(path.relative_to(ROOT)): path for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]}
    pages["README.md"] = ROOT / "README.md"
    texts = {name: path.read_text().split() for name, path in pages.items() if name not in GENERATED}
    words = {name: sum(bool(re.search(r"\w", word)) for word in text) for name, text in texts.items()}
    record_property("docs_words", sum(words.values()))
    assert {name: count for name, count in words.items() if count > WORDS_OF_A_PAGE} == {}
    assert sum(words.values()) <= WORDS


LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"?([^\s\">]+)|<link[^>]*\shref=\"?([^\s\">]+)")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_document_and_the_files_that_documents_link_to(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    documents = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")]
    assert {path.as_posix() for path in documents} <= pages
    assert {"index.html", "source/examples/quickstart/quickstart.toml.html", "source/benchmarks/index.html"} <= pages
    assert (site / "search" / "search_index.js").stat().st_size > 100_000


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    loaded = {address for page in pages for found in LOADED.findall(page.read_text()) for address in found if address}
    assert any("bundle" in address for address in loaded)
    assert [address for address in loaded if re.match(r"(https?:)?//", address)] == []


@pytest.mark.slow
def test_broken_links_break_the_build_and_are_named(tmp_path):
    for path in ROOT.iterdir():
        if path.name in {"README.md", "CONTRIBUTING.md", "actors", "benchmarks", "examples", "tests"}:
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    broken = ("nowhere.md", "install.md#nowhere", "../examples/nowhere.toml")
    with (tmp_path / "docs" / "gpus.md").open("a") as file:
        file.writelines(f"\n[gone]({link})\n" for link in broken)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if "gpus.md" in line]
    assert len(warnings) == len(broken)
    assert all(any(name in line for line in warnings) for name in ("nowhere.md", "#nowhere", "nowhere.toml"))
