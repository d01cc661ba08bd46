"""Scheduling policies, one file each: which engine runs which turn of which rollout. base.py is the interface."""
