"""Programs of others, each in a jail of its own: what runs outside of our processes. Standard library alone."""
