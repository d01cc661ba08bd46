"""``agent-rl data``: what it takes and does."""
