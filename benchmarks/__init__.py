"""One script a subject, run by ``agent-rl bench SUBJECT``; see README.md."""
