"""What runs in a warm interpreter and its children. Standard library only."""
