"""What holds for all tests."""

from hypothesis import settings

# No deadline: how long an example takes says how busy the machine is. Always the same examples: a failure is one of the
# change under test.
settings.register_profile("agent_rl", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)  # others every time: `make test-all`
settings.load_profile("agent_rl")
