"""Models of devices, engines, tools and lengths of rollouts, for `agent-rl simulate` and the scheduling lab."""
