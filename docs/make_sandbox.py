"""Make the table of system calls in docs/sandbox.md from the filter's: ``python docs/make_sandbox.py``.

A test notices when the document is out of date.
"""

from __future__ import annotations

from pathlib import Path

from actors.sandbox.isolation import syscall_table as table
from actors.sandbox.isolation.syscall_checks import AtLeast, Check, MaskedOneOf, Null, OneOf, Pretended, When, Without

OUTPUT = Path(__file__).with_name("sandbox.md")
HEADING = "## System calls"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


def named(calls: str) -> str:
    """The names in a table."""
    return ", ".join(f"`{entry.partition(':')[0]}`" for entry in calls.split())


def values(of: dict[str, int]) -> str:
    """Names of values."""
    return ", ".join(name.replace("|", " with ") for name in of)


def condition(check: Check) -> str:
    """A check in words."""
    argument = ORDINALS[check.argument]
    match check:
        case OneOf():
            return f"{argument}: {values(check.values)}"
        case MaskedOneOf():
            return f"{argument}: {values(check.values)}; besides, {values(check.ignored)}"
        case Without():
            return f"{argument}: none of {values(check.bits)}"
        case Pretended():
            return f"{values(check.values)}: report success, do nothing"
        case Null():
            return f"{argument}: NULL"
        case AtLeast():
            return f"{argument}: {check.value} or more"
        case When():
            return f"{check.name}: {condition(check.then)}"


def rows() -> list[tuple[str, str, str]]:
    """System calls, the arguments that are let through, and the reason."""
    found = [
        (named(row.calls), "; ".join(map(condition, row.checks)), row.reason)
        for row in (*table.CHECKED, table.ENTERING)
    ]
    found += [(named(calls), f"{ORDINALS[at]}: not SIGCONT", table.SIGNALLING_REASON) for calls, at in table.SIGNALLING]
    found += [
        (named(group.calls), "any", group.reason)
        for group in (*table.UNDER_ANY_ARGUMENTS, table.SHORTENING, table.MARKING, table.LEADING, table.IGNORED)
    ]
    return found


def section() -> str:
    """The whole section."""
    count = sum(cells[0].count("`") // 2 for cells in rows())
    lines = [
        HEADING,
        "",
        f"Made from `actors/sandbox/isolation/syscall_table.py` by `python docs/make_sandbox.py`. {count} system calls",
        "are allowed. An argument that is not let through is refused with EPERM, or with an error that libraries know.",
        "",
        "| system calls | arguments that are let through | why |",
        "|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells in rows()),
        "",
        f"Flags of {named(table.NOT_THERE)} lie in memory, where a filter can't look. They answer ENOSYS, and",
        "libraries then use the older calls.",
        "",
        "A child installs a second, short filter as the last step of sealing itself off. It refuses what that took:",
        "",
        *(f"- `{name}`: {why}." for name, why in table.SEALED.items()),
        "",
        f"Refused with EPERM, whatever the arguments: {named(table.REFUSED)}.",
        "",
        "Whatever stands in no list answers ENOSYS.",
    ]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The document with the section as it is now, at its end."""
    return text.partition(f"{HEADING}\n")[0].rstrip() + "\n\n" + section()


if __name__ == "__main__":
    OUTPUT.write_text(page(OUTPUT.read_text()))
