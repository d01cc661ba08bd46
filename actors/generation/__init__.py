"""The generator's parts: which policy is served, and the tool calls of its rollouts."""
