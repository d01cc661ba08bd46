"""Questions about small SQLite tables, each about a table of its own: the model writes SQL, reads rows, and answers.

Demonstrations show two kinds of question, a sum under a condition and the name of the largest; the other ten have to be
found by rewards. Held-out questions are about tables, columns and wordings that no training question has.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.environments.base import ChatMessages, Demonstration
from agent_rl.environments.maths.environment import BoxedAnswers, format_penalty
from agent_rl.environments.maths.rewards import exactly_equal, final_answer
from agent_rl.environments.tasks import DrawnTasks
from agent_rl.environments.tools import tool
from agent_rl.messages import Judgement, Problem, Transcript

STEPS = 100_000
"""Of SQLite's machine, a query may take so many."""
MOST_ROWS = 20
SYSTEM = "You query SQLite."


class Domain(NamedTuple):
    """A table of things: its name, one of the things, its columns beside ``name``, and the values of the first."""

    table: str
    thing: str
    kind: str
    numbers: tuple[str, str]
    values: tuple[str, ...]


TRAINED = (
    Domain("cities", "city", "country", ("population", "height"), ("Peru", "Spain", "Kenya", "Japan")),
    Domain("books", "book", "language", ("pages", "price"), ("French", "Greek", "Hindi", "Thai")),
    Domain("planes", "plane", "maker", ("seats", "speed"), ("Boeing", "Airbus", "Fokker")),
    Domain("players", "player", "team", ("goals", "age"), ("red", "blue", "green", "white")),
    Domain("rivers", "river", "continent", ("length", "depth"), ("Asia", "Africa", "Europe")),
    Domain("dogs", "dog", "breed", ("weight", "age"), ("poodle", "boxer", "beagle", "husky")),
    Domain("songs", "song", "genre", ("plays", "seconds"), ("jazz", "rock", "folk", "soul")),
    Domain("hotels", "hotel", "district", ("rooms", "price"), ("north", "south", "east", "west")),
    Domain("films", "film", "director", ("minutes", "votes"), ("Lang", "Ford", "Welles", "Ozu")),
    Domain("trees", "tree", "species", ("height", "age"), ("oak", "pine", "maple", "birch")),
    Domain("phones", "phone", "brand", ("price", "storage"), ("Nokia", "Sony", "Apple")),
    Domain("ships", "ship", "port", ("crew", "length"), ("Dover", "Genoa", "Oslo", "Lagos")),
)
HELD_OUT = (
    Domain("schools", "school", "town", ("pupils", "teachers"), ("Leeds", "York", "Bath", "Derby")),
    Domain("mountains", "mountain", "region", ("elevation", "huts"), ("Alps", "Andes", "Rockies")),
    Domain("recipes", "recipe", "cuisine", ("calories", "steps"), ("Thai", "Greek", "Indian", "Mexican")),
    Domain("cars", "car", "colour", ("power", "mileage"), ("silver", "black", "yellow")),
)
NAMES = [
    "Alba",
    "Brio",
    "Cato",
    "Dena",
    "Elmo",
    "Faro",
    "Gala",
    "Hugo",
    "Iris",
    "Juno",
    "Kira",
    "Luna",
    "Milo",
    "Nero",
    "Orla",
    "Pico",
    "Remo",
    "Sana",
    "Toro",
    "Vera",
]


QUESTIONS = """
count with: SELECT COUNT(*) FROM {table} WHERE {kind} = '{value}'
How many {table} have the {kind} {value}?
How many of the {table} are of {kind} {value}?
Count the {table} whose {kind} is {value}.

lookup: SELECT {number} FROM {table} WHERE name = '{name}'
What is the {number} of {name}?
Which {number} does {name} have?
Tell me the {number} of {name}.

count: SELECT COUNT(*) FROM {table}
How many {table} are there?
How many {table} does the table have?
Count all {table}.

above: SELECT COUNT(*) FROM {table} WHERE {number} > {limit}
How many {table} have a {number} above {limit}?
How many {table} have a {number} of more than {limit}?
Count the {table} whose {number} is greater than {limit}.

below: SELECT COUNT(*) FROM {table} WHERE {number} < {limit}
How many {table} have a {number} below {limit}?
How many {table} have a {number} of less than {limit}?
Count the {table} whose {number} is smaller than {limit}.

sum: SELECT SUM({number}) FROM {table}
What is the total {number} of all {table}?
What {number} do all {table} have in total?
Add up the {number} of the {table}.

sum with: SELECT SUM({number}) FROM {table} WHERE {kind} = '{value}'
What is the total {number} of the {table} with the {kind} {value}?
What {number} do the {table} of {kind} {value} have in total?
Add up the {number} of the {table} whose {kind} is {value}.

largest: SELECT MAX({number}) FROM {table}
What is the largest {number} of a {thing}?
How large is the largest {number}?
Find the maximum {number} of the {table}.

smallest: SELECT MIN({number}) FROM {table}
What is the smallest {number} of a {thing}?
How small is the smallest {number}?
Find the minimum {number} of the {table}.

name of largest: SELECT name FROM {table} ORDER BY {number} DESC LIMIT 1
Which {thing} has the largest {number}?
Name the {thing} with the largest {number}.
What is the name of the {thing} with the highest {number}?

distinct: SELECT COUNT(DISTINCT {kind}) FROM {table}
How many different values of {kind} are there?
How many different values has {kind}?
Count the distinct values of {kind} among the {table}.

difference: SELECT MAX({number}) - MIN({number}) FROM {table} WHERE name IN ('{name}', '{second}')
By how much is the {number} of {name} larger than that of {second}?
How much more {number} does {name} have than {second}?
Subtract the {number} of {second} from the {number} of {name}.
"""
"""Each kind of question: the SQL that answers it, and wordings, of which the last is kept for held-out questions."""
KINDS = {
    head.partition(": ")[0]: (head.partition(": ")[2], wordings)
    for head, *wordings in map(str.splitlines, QUESTIONS.strip().split("\n\n"))
}
SHOWN = ("sum with", "name of largest")
"""The kinds that demonstrations show."""


def rows_of(table: dict[str, Any], query: str) -> list[Sequence[Any]]:
    """The first rows of a query. Raises sqlite3.Error."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE {table['name']} ({', '.join(table['columns'])})")
        database.executemany(f"INSERT INTO {table['name']} VALUES (?, ?, ?, ?)", table["rows"])  # noqa: S608
        database.set_progress_handler(lambda: 1, STEPS)
        return database.execute(query).fetchmany(MOST_ROWS)


@tool(runs="sandbox")
def sql(query: str, *, problem: dict[str, Any]) -> str:
    """Run a query of SQLite on the question's table and return its rows."""
    return "\n".join(" | ".join(map(str, row)) for row in rows_of(problem, query)) or "no rows"


def draw(rng: random.Random, domains: Sequence[Domain], kinds: Sequence[str], wordings: slice) -> tuple[Problem, str]:
    """A question about a new table, and the SQL that answers it."""
    domain, kind = rng.choice(domains), rng.choice(kinds)
    names = rng.sample(NAMES, rng.randint(6, 12))
    columns = [rng.sample(range(10, 1000), len(names)) for _ in domain.numbers]
    rows = [[name, rng.choice(domain.values), *pair] for name, *pair in zip(names, *columns, strict=True)]
    at = rng.randrange(2)
    first, second = sorted(rng.sample(rows, 2), key=lambda row: row[2 + at], reverse=True)
    limit = rng.choice(rows)[2 + at] // 10 * 10 + 5
    places = domain._asdict() | {
        "value": rng.choice(rows)[1],
        "number": domain.numbers[at],
        "limit": limit,
        "name": first[0],
        "second": second[0],
    }
    answering, asking = KINDS[kind]
    query = answering.format(**places)
    table = {"name": domain.table, "columns": ["name", domain.kind, *domain.numbers], "rows": rows}
    question = rng.choice(asking[wordings]).format(**places)
    text = f"Table {domain.table}({', '.join(table['columns'])})\n{question}"
    return Problem("", text, str(rows_of(table, query)[0][0]), payload={**table, "subject": kind}), query


def trained(rng: random.Random) -> Problem:
    """A training question of any kind."""
    return draw(rng, TRAINED, tuple(KINDS), slice(-1))[0]


def shown(rng: random.Random) -> Demonstration:
    """A query and the answer that its result is."""
    problem, query = draw(rng, TRAINED, SHOWN, slice(-1))
    call = json.dumps({"name": "sql", "arguments": {"query": query}})
    turns = (
        ("user", problem.text),
        ("assistant", f"<tool_call>{call}</tool_call>"),
        ("user", f"<tool_response>{problem.answer}</tool_response>"),
        ("assistant", f"<answer>\\boxed{{{problem.answer}}}</answer>"),
    )
    return Demonstration(problem, tuple({"role": role, "content": content} for role, content in turns))


class Drawn(DrawnTasks):
    """Held-out questions are of other tables and in other words, and of each kind as many."""

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``."""
        kind = tuple(KINDS)[number % len(KINDS)]
        problem, _ = draw(random.Random(f"held-out/{number}"), HELD_OUT, (kind,), slice(-1, None))
        return replace(problem, id=f"held-out.{number}")


class Tables(BoxedAnswers):
    """Success is the right answer in a box, as text or as a number."""

    tools = (sql,)
    lists_tools = False

    def __init__(self, *, seed: int, base: Path) -> None:
        self._tasks = Drawn(seed, trained, shown)

    def problems(self) -> Drawn:
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        answer = final_answer(*transcript.texts)
        right = answer is not None and exactly_equal(problem.answer, answer) is True
        note = problem.payload["subject"]
        return Judgement(float(right), right, {}, format_penalty(transcript.texts), note, answer or "")
