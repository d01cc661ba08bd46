"""Where model code runs: warm interpreters that fork one sealed-off child per call, and their trio client.

Nothing is imported here: the warm interpreters pass through this package, and must stay small.
"""
