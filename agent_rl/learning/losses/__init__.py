"""Losses of the policy, one file each. `base` holds the interface, `trial` tries a loss on made-up input."""
