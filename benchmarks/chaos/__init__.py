"""Random faults for whole runs: a plan from a seed, who carries it out, and what the run's records say at the end."""
