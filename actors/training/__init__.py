"""The learner's parts: what has arrived for the next steps."""
