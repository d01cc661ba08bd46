"""``agent-rl eval``: what it takes, asks and prints."""
