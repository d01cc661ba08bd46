"""Losses of the policy, one file each. `base` holds the interface, `check_loss` tries a loss on made-up input."""
