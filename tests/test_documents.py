"""What documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
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
