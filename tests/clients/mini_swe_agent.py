"""mini-swe-agent: its DefaultAgent with its LitellmModel and its settings, in the folder where it is started."""

from pathlib import Path

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from weather import MODEL, tell

settings = get_config_from_spec("mini.yaml")
settings["agent"].pop("mode")  # of the interactive agent
model = LitellmModel(model_name=f"openai/{MODEL}", cost_tracking="ignore_errors", **settings["model"])
agent = DefaultAgent(model, LocalEnvironment(**settings["environment"]), **settings["agent"])
ended = agent.run("Write 6 times 7 to the file answer.")
tell(ended["submission"], status=ended["exit_status"], file=Path("answer").read_text(), calls=agent.n_calls)
