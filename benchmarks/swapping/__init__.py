"""The parts of `agent-rl bench swap`: the plan of changes, the classes that take turns, and what a run shows of it."""
