"""What a topology file says: its schema, how it is read, what its names resolve to."""
