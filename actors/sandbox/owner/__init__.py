"""The user's side of the sandbox: the interpreter processes, and the calls in flight on them."""
