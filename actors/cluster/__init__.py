"""How the hosts of a run are started: over ssh, by Slurm, by Kubernetes. What is rendered is pure text."""
