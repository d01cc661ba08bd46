"""The agent loop: conversations as tokens, tool calls read from turns, when a rollout ends."""
