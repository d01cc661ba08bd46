"""The sandbox from its user's side: processes of interpreters, and the calls in flight on them."""
