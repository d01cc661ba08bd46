"""What pyproject.toml cannot say: the wheel holds the examples, inside the package, under no name of their own.

It also holds the templates of the pages about a run, and the style of their charts.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["agent_rl*", "actors*", "transport*", "benchmarks*"]), "agent_rl.examples"],
    package_dir={"agent_rl.examples": "examples"},
    package_data={
        "agent_rl.examples": ["*.toml", "overlays/*.toml", "word_problems/*.jsonl"],
        "agent_rl.analysis": ["templates/*"],
        "agent_rl.simulation": ["*.toml", "profiles/*.toml"],
        "agent_rl.observe.charts": ["*.css"],
        "agent_rl.observe.report": ["templates/*"],
        "actors.sandbox.isolation": ["*.toml"],
        "*": ["py.typed"],
    },
)
