"""A topology of two hosts without addresses."""

TOPOLOGY = """\
[run]
name = "two"
directory = "runs/two"
[model.initialise]
[[environments]]
class = "examples.quickstart.arithmetic:Arithmetic"
[[stages]]
kind = "rl"
steps = 3
max_response_tokens = 40
max_turns = 2
[hosts.rollout]
[hosts.trainer]
base_port = 6100
[actors.kv_scheduler]
host = "trainer"
[actors.roc_filter]
host = "trainer"
[actors.learner]
host = "trainer"
settings.device = "cuda"
[actors.tool_executor]
host = "rollout"
[actors.rollout_generator]
host = "rollout"
links.weights = "learner"
settings = { device = "cuda:1", threads = 3, engine_settings = { tensor_parallel_size = 2 } }
"""
