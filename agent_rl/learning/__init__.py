"""The learner's mathematics: losses, packed sequences, optimizer, checkpoints."""
