"""Make docs/conformance_checks.md from the kit: ``python docs/make_conformance_checks.py``; a test notices when it is
old.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gateway_traps.traps import CHECKS

OUTPUT = Path(__file__).with_name("conformance_checks.md")
HEAD = """\
# Checks of a training gateway

The checks of `agent-rl conformance` ([how to run them](conformance.md)). Made from the kit by
`python docs/make_conformance_checks.py`.

| trap | check | what must hold |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    checks = sorted(CHECKS, key=lambda each: each.trap or 100)
    return HEAD + "".join(f"| {each.trap or '-'} | `{each.name}` | {each.title} |\n" for each in checks)


if __name__ == "__main__":
    OUTPUT.write_text(page())
