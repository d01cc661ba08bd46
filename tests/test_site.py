"""The site of docs/ is built without a warning, loads nothing from elsewhere, and a broken link breaks the build."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
