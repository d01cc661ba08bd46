"""Files on disk: written whole or not at all, read with one kind of error, removed when nobody uses them."""
