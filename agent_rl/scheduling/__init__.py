"""Decides when groups are opened, which engine gets which rollout, and how stale a group may become."""
