"""What holds for all tests."""

from hypothesis import settings

# How long an example takes says how busy the machine is. A failure here is one of the change under test: always the same examples.
settings.register_profile("agent_rl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)  # others every time: `make test-all`
settings.load_profile("agent_rl")
