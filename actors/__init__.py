"""The actors: thin asynchronous shells that join agent_rl and transport."""
