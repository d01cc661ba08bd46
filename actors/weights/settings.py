"""The learner's settings, and what `agent-rl check` finds wrong with them, with the loss and with the advantage."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from actors.base import Settings
from actors.weights import transfer
from actors.weights.fetch import LINK, SHARED_MEMORY, has_shared_memory
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.plugins import ALIASES, ContractError, find, resolve
from agent_rl.config.topology import Topology

TRIAL_SECONDS = 120.0
"""Seconds that the trial of a loss may take; importing torch takes most of them."""


class LearnerSettings(Settings):
    """Device and memory of training, and where policies are published."""

    threads: PositiveInt | Literal["auto"] = "auto"
    """Threads of torch. ``auto``: this process's share of the host's cores, and those that are idle; 1 for models below
    20M weights."""
    device: str = "cpu"
    """As torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    logits_mib: PositiveInt = 128
    """Memory for one block of logits; the peak is three times as much."""
    weights_in: Literal["run_directory", "shared_memory", "nccl", "gloo"] = "run_directory"
    """Where policies are published. ``run_directory``: on disk. ``shared_memory``: in this host's memory, for its own
    generators and for links. ``nccl``, ``gloo``: sent to each engine, with GPUs or without."""
    mismatch_tokens: NonNegativeInt = 1024
    """Tokens of a step computed again with the weights that sampled them, to tell staleness from numerics; 0: none."""
    engine_sleep_seconds: PositiveFloat = 300.0
    """With ``share = "time"``: how long a step waits until the engines on its devices sleep. Then the learner trains
    beside those that are awake."""
    rank_timeout_seconds: PositiveFloat = 600.0
    """How long a rank waits for another, in each operation and for rank 0's next order."""
    rank_silent_seconds: PositiveFloat = 30.0
    """When rank 0 has heard nothing of a rank for so long, all ranks end and start again."""
    rank_meeting_seconds: PositiveFloat = 50.0
    """From the start until all ranks must have met. Importing torch takes most of it."""
    record_timeout_seconds: PositiveFloat = 120.0
    """How long the filter may take to record a step. Then the learner restarts and reports it again."""


def _out_of_reach(topology: Topology) -> list[str]:
    """A fault for each role on another host that loads policies and has no link to fetch them."""
    far = [
        role
        for role, entry in topology.actors.items()
        if LINK in getattr(resolve("actor", entry.class_path), "links", {})
        if {topology.main_host} != set(topology.homes(role).values()) and not entry.targets(LINK)
    ]
    remedy = f'give it the link {LINK} = "learner", or leave weights_in at run_directory on a disk that the hosts share'
    return [f"weights_in: {role} is on another host, and cannot read this one's memory; {remedy}" for role in far]


def _not_to_be_sent(topology: Topology, settings: LearnerSettings) -> list[str]:
    """The faults that prevent sending weights to the generators."""
    way, faults = settings.weights_in, []
    gpu = f'{way} sends from GPU to GPU; set its device = "cuda", or weights_in = "gloo" or another way'
    if way == "nccl" and not settings.device.startswith("cuda"):
        faults.append(f"weights_in: the learner's device is {settings.device}, and {gpu}")
    for role, entry in topology.actors.items():
        cls = resolve("actor", entry.class_path)
        if LINK not in getattr(cls, "links", {}) and transfer.LINK not in getattr(cls, "links", {}):
            continue
        if transfer.LINK not in cls.links:
            faults.append(
                f"weights_in: {entry.class_path}, of {role}, has no link {transfer.LINK}, over which weights are sent; "
                "choose another way, or derive it from actors.rollout_generator:RolloutGenerator"
            )
        elif not entry.targets(transfer.LINK):
            faults.append(f'weights_in: {role} is not sent the weights; give it the link {transfer.LINK} = "learner"')
        device = str(entry.settings.get("device", "cpu"))
        if way == "nccl" and not device.startswith("cuda"):
            faults.append(f"weights_in: {role}'s device is {device}, and {gpu}")
    return faults


def settings_faults(topology: Topology, settings: LearnerSettings) -> list[str]:
    """The faults of these settings: missing packages, and generators that cannot reach published weights."""
    faults = []
    if topology.model.lora is not None and find_spec("peft") is None:
        faults.append("model.lora needs peft: pip install 'agent-rl[lora]'")
    if settings.weights_in in transfer.BACKENDS:
        faults += _not_to_be_sent(topology, settings)
    if settings.weights_in == "shared_memory":
        faults += _out_of_reach(topology)
        if not has_shared_memory():
            faults.append(f"weights_in: this user cannot write to {SHARED_MEMORY} here; leave it at run_directory")
    return faults


def try_loss_elsewhere(algorithm: Algorithm) -> None:
    """Try a loss of the user's own in a process that loads torch, which checking a topology must not load.

    Raises PluginError when there is no such loss, ContractError when it fails, or returns something wrong.
    """
    if algorithm.loss in ALIASES["loss"]:
        return
    find("loss", algorithm.loss)
    command = [sys.executable, "-m", "agent_rl.learning.losses.check_loss", algorithm.model_dump_json()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the user's module may be beside the topology
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ContractError(f"{algorithm.loss} returned nothing within {TRIAL_SECONDS:g} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ContractError(f"the process that tried {algorithm.loss} ended with exit code {done.returncode}: {last}")
    if done.stdout:
        raise ContractError(done.stdout.strip())
