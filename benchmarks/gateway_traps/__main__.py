"""``python -m benchmarks.gateway_traps URL --key KEY``: needs Python's standard library only."""

import sys

from benchmarks.gateway_traps.kit import main

sys.exit(main())
