"""The base of the roles' suites: a topology for the actor under test, virtual time, failures in one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar

import trio
from trio.testing import MockClock

from actors.base import Actor, LinkKind
from agent_rl.config.plugins import ALIASES, resolve
from agent_rl.config.topology import Topology
from agent_rl_contract.stage import Stage, running

PRODUCTION = ALIASES["actor"]
"""The classes whose links and messages the stand-ins have."""

LONGEST = 1800.0
"""Virtual seconds after which a test that still waits has failed."""

SUMS = {"class": "agent_rl_contract.sums:Sums", "name": "arithmetic"}
"""The task, as an entry of ``environments``."""

RL_STAGE = {
    "kind": "rl",
    "name": "rl",
    "steps": 6,
    "max_response_tokens": 160,
    "max_turns": 3,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
}
EVALUATE_STAGE = {"kind": "evaluate", "name": "after", "problems": 2, "max_response_tokens": 160, "max_turns": 3}
SFT_STAGE = {"kind": "sft", "name": "format", "steps": 2, "batch": 2}


class RoleContract:
    """Derive from a role's suite, and name the class under test."""

    actor: ClassVar[type[Actor]]
    role: ClassVar[str]
    settings: ClassVar[Mapping[str, Any]] = {}
    """The actor's, as its topology would give them."""

    def topology(self, folder: Path, **changes: Any) -> Topology:
        """A small topology in which the class under test has the ``role``.

        ``changes`` replace whole tables (``stages``), or keys of ``algorithm`` (a mapping). ``replicas`` is the number
        of generators.
        """
        folder.mkdir(parents=True, exist_ok=True)
        classes: dict[str, type[Actor]] = {role: resolve("actor", path) for role, path in PRODUCTION.items()}
        classes[self.role] = self.actor
        actors: dict[str, Any] = {
            role: {"class": PRODUCTION[role], "links": derived_links(role, classes)} for role in PRODUCTION
        }
        actors[self.role]["settings"] = dict(self.settings)
        actors["rollout_generator"]["replicas"] = changes.pop("replicas", 1)
        sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_size": 32}
        algorithm = {"groups_per_step": 2, "samples": 4, "keep": 2, "max_staleness": 1, **changes.pop("algorithm", {})}
        return Topology.model_validate(
            {
                "run": {"name": "contract", "directory": folder, "checkpoint_every": 2, "keep_checkpoints": 3},
                "model": {"initialise": {**sizes, "max_length": 512}},
                "environments": [SUMS],
                "algorithm": algorithm,
                "stages": [RL_STAGE, EVALUATE_STAGE],
                "actors": actors,
                **changes,
            }
        )

    def running(
        self, topology: Topology, stage: Stage, *, incarnation: int = 1, kill: bool = False
    ) -> AbstractAsyncContextManager[Actor]:
        """The actor under test among the stand-ins; with ``kill`` it ends as by SIGKILL."""
        return running(
            self.actor, topology, self.role, topology.run.directory, stage, incarnation=incarnation, kill=kill
        )

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run one test in virtual time. Raises the failure alone, without the exception groups around it."""

        async def bounded() -> None:
            with trio.move_on_after(LONGEST) as scope:
                await main()
            assert not scope.cancelled_caught, f"{self.actor.__name__}: the test still waited after {LONGEST} s"

        try:
            trio.run(bounded, clock=self.make_clock())
        except BaseExceptionGroup as group:
            leaves = _leaves(group)
            failed = next((leaf for leaf in leaves if isinstance(leaf, AssertionError)), None)
            if failed is not None:
                raise failed from None
            raise AssertionError(f"{self.actor.__name__}: {type(leaves[0]).__name__}: {leaves[0]}") from leaves[0]

    def make_clock(self) -> MockClock | None:
        """A clock that jumps ahead as soon as all tasks wait."""
        return MockClock(autojump_threshold=0)

    async def settled(self, seconds: float = 5.0) -> None:
        """Wait until nothing more happens."""
        await trio.sleep(seconds)


def trio_test(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a coroutine function a test method of a `RoleContract`, whose ``run`` runs the coroutine."""

    @wraps(test)
    def run(suite: RoleContract, *arguments: Any, **fixtures: Any) -> None:
        suite.run(partial(test, suite, *arguments, **fixtures))

    return run


def derived_links(role: str, classes: Mapping[str, type[Actor]]) -> dict[str, tuple[str, ...]]:
    """The role's links, each to the roles that receive its messages. Raises AssertionError when a link has none.

    A link that need not lead anywhere may have none.
    """
    links = {}
    for name, declared in classes[role].links.items():
        targets = tuple(other for other in classes if other != role and _receives(classes[other], declared))
        if not targets and not getattr(declared, "required", True):
            continue  # a topology may leave it out
        types = ", ".join(message.__name__ for message in declared.messages)
        assert targets, f"{classes[role].__name__}: nobody receives what the link {name!r} carries ({types})"
        links[name] = targets
    return links


def _receives(cls: type[Actor], declared: LinkKind) -> bool:
    known = {message for received in cls.receives if received.kind == declared.kind for message in received.messages}
    return set(declared.messages) <= known


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _leaves(part)]
