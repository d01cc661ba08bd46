"""The paper's study of token entropy, over the trajectories that a run's journal holds (``agent-rl analyze``)."""
