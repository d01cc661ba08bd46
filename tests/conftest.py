"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("agent_rl", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("agent_rl")
