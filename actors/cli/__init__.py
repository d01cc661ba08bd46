"""The command line ``agent-rl``."""
