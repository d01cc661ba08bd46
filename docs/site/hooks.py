"""What the site needs beyond docs/: README.md as its first page, and a page for each file that documents link to.

Links of the documents are those of the repository, so that they also work where the repository is read. A link that
leads out of docs/ gets a page below ``source/`` with that file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
CODE_IN_ROW = re.compile(r"`[^`]+`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the first page, and the files outside docs/ that pages name, with those that they name in turn."""
    waiting = [(file.src_uri, f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    waiting.append(("index.md", "README.md", (ROOT / "README.md").read_text(encoding="utf-8")))
    named: set[str] = set()
    while waiting:
        place, path, text = waiting.pop()
        if place == "index.md" or place.startswith("source/"):
            files.append(File.generated(config, place, content=_moved(text, path, place)))
        for _, target in LINK.findall(text) if _is_markdown(path) else ():
            outside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if _place(outside).startswith("source/") and outside not in named and (ROOT / outside).exists():
                named.add(outside)
                waiting.append((_place(outside), outside, _source(outside)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages of `on_files`, and show ``|`` in the code of tables."""
    del config, files
    place = page.file.src_uri
    text = markdown if page.file.generated_by else _moved(markdown, f"docs/{place}", place)
    lines = text.splitlines()
    shown = (
        CODE_IN_ROW.sub(lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
        for line in lines
    )
    return "\n".join(shown) + "\n"


def _is_markdown(path: str) -> bool:
    return path.endswith(".md") or (ROOT / path).is_dir()


def _place(path: str) -> str:
    """Where the site has a file of the repository, as a path below docs/."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/") and not (ROOT / path).is_dir():
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def _source(path: str) -> str:
    """A page with a file of the repository, or with the names of a folder's files."""
    file = ROOT / path
    if file.is_dir():
        names = [each.name for each in sorted(file.iterdir()) if not each.name.startswith(("__", "."))]
        return f"# {path}\n\n" + "\n".join(f"- [{name}]({file.name}/{name})" for name in names) + "\n"
    text = file.read_text(encoding="utf-8")
    return text if path.endswith(".md") else f"# {path}\n\n````{file.suffix.removeprefix('.')}\n{text}````\n"


def _moved(text: str, path: str, place: str) -> str:
    """The text of a file of the repository with its links led to where the site has their targets."""

    def led(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        return match[1] + posixpath.relpath(_place(target), posixpath.dirname(place) or ".")

    return LINK.sub(led, text)
