"""What pyproject.toml cannot say: the wheel holds the examples, inside the package, under no name of their own, and the
suites of tests for classes of a user's own (agent_rl_contract), which lie below tests/.

It also holds the template of the pages about a run, and the chart library that the pages contain (uPlot, MIT).
"""

from setuptools import find_packages, setup

setup(
    include_package_data=False,  # package_data names them
    packages=[
        *find_packages(include=["agent_rl*", "actors*", "transport*", "benchmarks*"]),
        "agent_rl.examples",
        "agent_rl_contract",
    ],
    package_dir={"agent_rl.examples": "examples", "agent_rl_contract": "tests/contract/agent_rl_contract"},
    package_data={
        "agent_rl.examples": ["*.toml", "*/*.toml", "*/*.py", "cluster/*", "word_problems/*.jsonl"],
        "agent_rl.evaluation": ["*.txt"],
        "agent_rl.observe.report": ["web/*", "vendor/*"],
        "actors.sandbox.isolation": ["*.toml"],
        "benchmarks": ["*.toml", "*.jsonl"],
        "benchmarks.hostile": ["*.toml"],
        "benchmarks.twin": ["*.toml", "*.jsonl", "profiles/*.toml"],
        "*": ["py.typed"],
    },
)
