"""What a model directory or a name on the hub says of a model, read without torch."""
