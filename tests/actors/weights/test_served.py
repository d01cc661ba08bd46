"""The oldest policy that engines serve, and what a report costs."""

import random
from collections.abc import Iterator
from typing import Any

from actors.weights.publish import ServedPolicies
from agent_rl.messages import Policy


def test_the_oldest_policy_follows_engines_that_report_leave_and_come_back() -> None:
    rng = random.Random(7)
    served, expected = ServedPolicies(), dict[str, Policy]()
    for _ in range(2_000):
        engine, before = f"rollout_generator.{rng.randrange(6)}", min(expected.values(), default=None)
        if rng.random() < 0.2:
            expected.pop(engine, None)
            changed = served.gone(engine)
        else:
            expected[engine] = Policy(rng.randrange(2), rng.randrange(5))
            changed = served.served(engine, expected[engine])
        assert served.oldest == min(expected.values(), default=None)
        assert changed == (served.oldest != before)


def test_a_report_that_changes_nothing_looks_at_one_engine(monkeypatch: Any) -> None:
    """Comparisons of policies, counted: the oldest over all engines would compare every one of them."""
    compared = 0

    def counting(name: str) -> Any:
        original = getattr(Policy, name)

        def compare(self: Policy, other: object) -> Any:
            nonlocal compared
            compared += 1
            return original(self, other)

        return compare

    for name in ("__eq__", "__lt__", "__le__", "__gt__", "__ge__"):
        monkeypatch.setattr(Policy, name, counting(name))

    def reports(engines: int) -> Iterator[int]:
        nonlocal compared
        served = ServedPolicies()
        for version in range(3):  # every engine moves on twice, one after the other
            for again in range(2):
                compared = 0
                for number in range(engines):
                    served.served(f"rollout_generator.{number}", Policy(1, version))
                yield compared / engines
                assert served.oldest == Policy(1, version), again

    for few, many in zip(reports(50), reports(400), strict=True):
        assert many <= few + 1
        assert many <= 8
