"""Questions about a shop's orders in SQLite. What a statement changes is there for the rest of the rollout."""

import random
import sqlite3
from pathlib import Path

from agent_rl.environments.base import ChatMessages
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.environments.tasks import ListedTasks
from agent_rl.environments.tools import tool
from agent_rl.messages import Problem

ITEMS = [f"{kind} {thing}" for kind in ("red", "green", "white", "black") for thing in ("tea", "rice", "salt", "beans")]
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ines", "Jon")
ORDERS = [(who, what, random.Random(who + what).randint(1, 40)) for who in CUSTOMERS for what in ITEMS]


@tool(runs="sandbox")
def sql(query: str, *, state: list[str]) -> str:
    """Run one SQLite statement on the table orders(customer, item, amount) and return its rows."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.execute("CREATE TABLE orders (customer TEXT, item TEXT, amount INTEGER)")
    database.executemany("INSERT INTO orders VALUES (?, ?, ?)", ORDERS)
    for earlier in state:
        database.execute(earlier)
    rows = database.execute(query).fetchmany(50)
    if not query.lstrip().lower().startswith("select"):
        state.append(query)
    return "\n".join(" | ".join(map(str, row)) for row in rows) or "no rows"


class Questions(BoxedAnswers):
    """How many more of an item one customer ordered than another."""

    tools = (sql,)

    def __init__(self, *, seed: int, base: Path) -> None:
        pairs = [(a, b) for a in ORDERS for b in ORDERS if a[1] == b[1] and a[2] > b[2]]
        found = [
            Problem(f"{a[0]}, {b[0]}: {a[1]}", f"How many more {a[1]} than {b[0]} did {a[0]} order?", str(a[2] - b[2]))
            for a, b in random.Random(0).sample(pairs, len(pairs))
        ]
        self._tasks = ListedTasks([found[100:]], found[:100], seed=seed)

    def problems(self) -> ListedTasks:
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": problem.text + " Answer in <answer>\\boxed{}</answer>."}]
