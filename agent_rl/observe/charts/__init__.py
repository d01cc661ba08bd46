"""Charts as SVG, for the report and for figures of their own: scales, markup that escapes, lines with bands, stacks."""
