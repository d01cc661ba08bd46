"""Every message that crosses a link, as plain frozen dataclasses.

The flow, sender to receiver (kind of link in brackets)::

    kv_scheduler       GroupOpened [push] ------------------------> roc_filter
    kv_scheduler       RolloutRequest [push] ---------------------> rollout_generator
    kv_scheduler       GroupsUnwanted [announce] -----------------> rollout_generator
    rollout_generator  TurnsCompleted [push] ---------------------> kv_scheduler
    rollout_generator  ToolCall / ToolResult [call] --------------> tool_executor
    rollout_generator  ObserveTurn / TurnObserved [call] ---------> tool_executor
    gateway            TurnAsked / TurnGiven [call] --------------> rollout_generator
    gateway            SessionAsked / SessionGiven [call] --------> rollout_generator
    rollout_generator  Trajectory [push] -------------------------> roc_filter
    rollout_generator  EngineLoad [announce] ---------------------> kv_scheduler, learner
    roc_filter         JudgementWanted / JudgementReply [call] --> tool_executor
    roc_filter         TrainingGroup, StepReady, EvaluationReady [push] -> learner
    roc_filter         GroupsProgress [announce] -----------------> kv_scheduler
    learner            PolicyPublished [announce] ----------------> kv_scheduler, rollout_generator
    learner            DeviceTurn [announce] ---------------------> rollout_generator
    rollout_generator  WeightsWanted / WeightsPart [call] --------> learner, rollout_generator
    rollout_generator  TransferWanted / TransferOffer [call] -----> learner
    learner            StageEntered / StageRecorded [call] -------> roc_filter
    learner            StepTrained, CheckpointSaved / Recorded [call] -> roc_filter
    kv_scheduler       UnfinishedGroups / GroupsUnfinished [call]-> roc_filter
    learner            RanksWanted / RanksState [call] -----------> learner_ranks: its other ranks
    every actor        ActorStatus [announce] --------------------> supervisor of its host
    supervisor         Observed [announce] -----------------------> supervisor of the learner's host
    supervisor         Wanted [announce] -------------------------> supervisors of other hosts
    supervisor         HostHello / HostHello [call] --------------> supervisors of other hosts
    a command          SwapWanted, ScaleWanted, DrainWanted, StopWanted, Progress / Changed [call] -> the same

Announcements carry totals or whole states, never differences, so that losing any one of them loses nothing.
Array fields state their dtype and number of dimensions in the annotation, and their shape in the docstring;
the codec checks the former on arrival.
"""

from __future__ import annotations

from agent_rl.messages.changes import *
from agent_rl.messages.gateway import *
from agent_rl.messages.rollouts import *
from agent_rl.messages.status import *
from agent_rl.messages.tokens import *
from agent_rl.messages.tool_executor import *
from agent_rl.messages.training import *
