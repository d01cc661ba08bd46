"""``agent-rl serve``: a model with its tools behind the gateway, for programs that speak OpenAI's or Anthropic's HTTP.

It is an evaluation whose rollouts are sessions of live traffic: each request begins one. So the same actors serve as in
training, on the same hosts and GPUs, and the journal has what was said.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.cli.evaluation import OneLine, prepare
from actors.cli.output import Mistake, complain
from actors.cli.parameters import ActorsOf, ModelNamed, Overrides, Positive, PositiveNumber, TopP
from actors.cli.topologies import sound_topology, supervise
from agent_rl.config.examples import topology_file
from agent_rl.config.gateway import ADDRESS, PORT, listens_beyond
from agent_rl.config.source import TopologyError
from agent_rl.evaluation.problems import EvaluationError
from agent_rl.evaluation.topology import Asked, evaluation_topology, find_model, model_config
from agent_rl.files.disk import DiskError
from agent_rl.observe.words import clock

DIRECTORY = Path("served")
ENVIRONMENT = "live"
MOST = 1_000_000
"""Requests that one server answers."""
SECONDS = 1800.0
SERVING = "serving at"
"""What a line has once requests are answered."""


class ServingView(OneLine):
    """Where the model is served, and how many requests were answered."""

    where = ""
    _serving = False

    def milestone(self) -> int:
        """Whether it serves. It does once its actors run, and goes on where one of them is started again."""
        self._serving = self._serving or (self.progress()[0] is not None and not self.unusual(self.started))
        return self._serving

    def line(self, now: float) -> str:
        """The server in one line."""
        done, _ = self.progress()
        unusual = ", ".join(f"{actor} {state}" for actor, state in self.unusual(now))
        text = f"{SERVING} {self.where}: {done or 0:,.0f} requests answered" if self.milestone() else "starting"
        return f"[{clock(now - self.started)}] {text}" + (f"  ({unusual})" if unusual else "")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Served:
    """Options of `serve` and `chat`: the model's tools and limits, and what it runs on."""

    tools: Annotated[
        tuple[str, ...],
        Parameter(
            show_default=False,
            consume_multiple=1,
            help="tools that the model may call, each module:name or a short name, or none; left out: python",
        ),
    ] = ("python",)
    temperature: PositiveNumber = 0.6
    top_p: TopP = 1.0
    max_tokens: Annotated[Positive, Parameter(help="of all turns of a request, tool results included")] = 30720
    max_turns: Positive = 30
    seed: int = 0
    topology: ActorsOf = ()
    overrides: Overrides = ()


def serve(
    model: ModelNamed,
    /,
    *,
    served: Served | None = None,
    address: Annotated[str, Parameter(help="where to listen; beyond this host it needs --key")] = ADDRESS,
    port: Annotated[Positive, Parameter(help="where to listen")] = PORT,
    key: Annotated[str, Parameter(help="the API key that clients must send, or env:NAME; empty: any")] = "",
    out: Annotated[
        Path | None,
        Parameter(metavar="DIR", help=f"where the journal goes; left out: {DIRECTORY}/ and the model's name"),
    ] = None,
) -> int:
    """Serve a model until interrupted; returns the exit code."""
    options = served or Served()
    try:
        if listens_beyond(address) and not key:
            raise Mistake(f"--address {address} can be reached from other hosts: choose an API key with --key")
        path, name, _ = find_model(model, complain)
        longest, _ = model_config(path)
        sampling = {"temperature": options.temperature, "top_p": options.top_p, "max_turns": options.max_turns}
        lengths = {"max_response_tokens": min(options.max_tokens, longest or options.max_tokens)}
        stage = {**sampling, **lengths, "problems": MOST, "samples": 1}
        chosen = [each for each in options.tools if each != "none"]
        harness = {"source": "live", "tools": bool(chosen), "seconds": SECONDS}
        environment = {"class": "live", "name": ENVIRONMENT, "tools": chosen, "harness": harness}
        asked = Asked(path, [environment], stage, options.seed)
        files = options.topology
        base = (topology_file(str(files[0])), *files[1:]) if files else None
        directory = out or DIRECTORY / name
        tables = evaluation_topology(asked, directory.absolute(), base)
        gateway = tables["actors"].setdefault("gateway", {})
        listening = {"address": address, "port": port, "session_key": key, "opens": True}
        gateway["settings"] = {**gateway.get("settings", {}), **listening}
        settings = {"model": str(path), "tools": chosen, "seed": options.seed, **stage}
        file = prepare(directory, tables, settings).absolute()
        view = type("View", (ServingView,), {"where": f"http://{address}:{port}/v1"})
        again = shlex.join(["agent-rl", *sys.argv[1:]])
        topology = sound_topology(file, options.overrides)
        return supervise(topology, file, options.overrides, None, view, again=again)
    except (TopologyError, EvaluationError, DiskError) as error:
        raise Mistake(str(error)) from error
