"""``agent-rl status``: what a run is to consist of, beside what of it is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.cli.output import Mistake, say, table_console
from actors.cli.parameters import RunDirectory

if TYPE_CHECKING:
    from rich.table import Table

    from agent_rl.records.document import Document


def status(
    directory: RunDirectory,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", help="print the document itself, without settings")] = False,
) -> int:
    """Say which processes of a run are wanted, and which are there.

    Exit code 0 while the run is under way and everything is as it is wanted, else 1.
    """
    from agent_rl.records.document import FILE, Document
    from agent_rl.records.run_directory import in_use

    document = Document.read(directory)
    if document is None:
        remedy = "name the run directory, on the machine of the learner's host"
        raise Mistake(f"{directory / FILE} cannot be read, or is not there; {remedy}")
    under_way = in_use(directory) and not document.ended
    if as_json:
        shown = asdict(document) | {"under_way": under_way}
        for role in shown["roles"].values():
            del role["settings"], role["swaps"]
        say(json.dumps(shown, indent=1))
    else:
        console = table_console()
        for table in tables(document, under_way=under_way):
            console.print(table)
    return 0 if under_way and not document.others else 1


def tables(document: Document, *, under_way: bool) -> Iterator[Table | str]:
    """The document as people read it. What is not as it is wanted is named with its reason."""
    from rich.table import Table
    from rich.text import Text

    from agent_rl.observe.words import visible

    def table(*columns: str) -> Table:
        return Table(*columns, box=None, pad_edge=False, header_style="bold")

    def add(rows: Table, *cells: str) -> None:  # as texts: a cell that is a str would be read as markup
        rows.add_row(*(Text(visible(cell)) for cell in cells))

    ended = "it has ended" if document.ended else "its supervisor was killed; a start goes on with what is wanted"
    yield "under way" if under_way else f"not under way: {ended}"
    seen = "seen" if under_way else "seen last"
    hosts = table("host", "wanted", seen)
    for name, host in document.hosts.items():
        add(hosts, name, "up" if host.wanted else "gone", host.state)
    yield hosts
    roles = table("role", "class", "wanted", seen)
    for name, role in document.roles.items():
        states = Counter(document.seen(each) for each in document.processes.values() if each.role == name)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        add(roles, name, role.class_path, str(role.replicas), counts)
    yield roles
    if under_way and document.others:
        processes = table("not as wanted", "host", "wanted", "seen", "why")
        for name, each in document.others.items():
            state, wanted = document.seen(each), "up" if each.wanted else "gone"
            why = each.detail if state == each.state else f"host {each.host} is not heard"
            add(processes, name, each.host, wanted, state, why)
        yield processes
    if document.edits:
        edits = table("asked for", "change", "answer")
        for edit in document.edits:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(edit.at))
            lines = [*edit.done, *(f"refused: {line}" for line in edit.refused)]
            add(edits, at, edit.what, "\n".join(lines))
        yield edits
