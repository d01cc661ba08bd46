"""``agent-rl``, and ``python -m agent_rl``, which is the same."""

import sys

from agent_rl.interrupts import begin


def main() -> int:
    """Entry point: nothing heavy is imported before an interrupt can be answered."""
    begin()
    from agent_rl.cli import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
