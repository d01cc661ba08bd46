"""``python -m agent_rl.conformance URL --key KEY``: needs Python's standard library only."""

import sys

from agent_rl.conformance.kit import main

sys.exit(main())
