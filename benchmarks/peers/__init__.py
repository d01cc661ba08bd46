"""Other systems' sides of benchmarks; each runs in an environment of its own, where that system is installed."""
