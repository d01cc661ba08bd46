"""``agent-rl``, and ``python -m actors.cli``, which is the same."""

import sys
from pathlib import Path

from actors.runtime.interrupts import begin


def main() -> int:
    """Entry point: nothing heavy is imported before an interrupt can be answered."""
    begin()
    if sys.path[0] == str(Path.cwd()) and not sys.flags.safe_path:  # with -P, it is the first folder of PYTHONPATH
        del sys.path[0]  # `python -m actors.cli`: what lies in the working directory is looked at last
    sys.path.append(str(Path(__file__).parents[2]))  # a clone that is not installed
    from actors.cli.main import main as command_line

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
