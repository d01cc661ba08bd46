"""Where problems come from, and whether an answer solves them."""
