"""``python -m agent_rl`` is ``agent-rl``."""

import sys

from agent_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
