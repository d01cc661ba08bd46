"""A dry run that refuses what is called so."""

import sys

from actors.runtime.children import leave_message

if any("refused" in argument for argument in sys.argv):
    leave_message("there is no module 'refused'\nmend it")
    sys.exit(3)
