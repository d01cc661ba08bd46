"""The executor's parts: what the code of tools and environments is offered, and by when it must have ended."""
