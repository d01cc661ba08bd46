"""The KV-cache scheduler: ``scheduler.py`` is the actor, the other files are its parts."""

from actors.kv_scheduler.scheduler import REPORT_SECONDS, KVScheduler, KVSchedulerSettings

__all__ = ["REPORT_SECONDS", "KVScheduler", "KVSchedulerSettings"]
