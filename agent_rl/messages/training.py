"""Steps of training: decided groups, the learner's place in the recipe, its weights, and what a restart asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_rl.figures import EvaluationFigures, SelectionFigures, StageFigures, StepFigures, TrainingFigures
from agent_rl.messages.rollouts import Evaluation, GroupOpened, PolicyVersion, Trajectory
from agent_rl.messages.tokens import Float32Vector, Uint8Vector


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """A decided group with signal: the kept trajectories and their rewards [kept], float32.

    Their transcripts hold the status alone.
    """

    group: str
    stage: int
    policy: PolicyVersion
    trajectories: tuple[Trajectory, ...]
    rewards: Float32Vector


@dataclass(frozen=True, slots=True)
class StepReady:
    """The step that brings the policy from ``version`` to ``version + 1``: its groups in training order.

    A step without groups is counted without an update. ``figures`` describes the rollouts it decided.
    """

    stage: int
    version: int
    groups: tuple[str, ...]
    figures: StepFigures


@dataclass(frozen=True, slots=True)
class EvaluationReady:
    """All rollouts of an evaluation, or of a select stage, are judged: one of ``figures`` and ``selection``."""

    evaluation: Evaluation
    figures: EvaluationFigures | None
    selection: SelectionFigures | None = None


@dataclass(frozen=True, slots=True)
class GroupsProgress:
    """The filter's state of the current stage, for the scheduler.

    ``uncounted``: decided groups that no step counts, less those that short steps forgave; the scheduler may open that
    many more. ``retries`` are rollouts to sample again. The scheduler cancels rollouts of ``dropped_groups``.
    ``outcomes``: of the groups decided last, where the stage has a curriculum.
    """

    stage: int
    decided: int
    uncounted: int
    retries: tuple[Retry, ...]
    dropped_groups: tuple[str, ...]
    outcomes: tuple[GroupOutcome, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Of the judged rollouts of training group ``number``, so many were right; ``drawn`` is its problem's number."""

    number: int
    drawn: int
    right: int
    samples: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Sample ``sample`` of ``group`` again, as attempt ``attempt``; the rest is as in its GroupOpened."""

    group: str
    sample: int
    attempt: int
    number: int
    evaluation: Evaluation | None = None
    drawn: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyPublished:
    """The newest policy, where its weights are, and the learner's position in the recipe.

    ``uri`` names an immutable safetensors file; with the schemes ``nccl`` and ``gloo`` the learner sends the weights on
    request (TransferWanted). For a file that is fetched over a link, ``checksum`` is the CRC-32 of the CRC-32s of its
    parts (else 0). ``stage`` is an index, or the number of stages when the recipe is done; it began at
    ``stage_version``.
    """

    policy: PolicyVersion
    uri: str
    stage: int
    stage_version: int
    size: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class DeviceTurn:
    """Whose turn it is on the devices that the learner shares with engines in time.

    ``training``: the learner's, and the announcement is handled once the engine on such a device is asleep. Else these
    engines wake.
    """

    training: bool


@dataclass(frozen=True, slots=True)
class WeightsWanted:
    """Send a part of a policy's file, from byte ``offset`` on, to a generator that shares no disk with the learner.

    ``passes_on``: the sender can fetch from other generators, and passes on what it has; ``failed``: the one from which
    it could not fetch.
    """

    policy: PolicyVersion
    offset: int
    passes_on: bool = False
    failed: str = ""


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """The part from byte ``offset`` on and its CRC-32; ``data`` [bytes] is empty when the file was removed.

    It is also empty when the learner names the generator to ask (``source``), and when a generator does not have the
    part yet (``later``).
    """

    offset: int
    checksum: int
    data: Uint8Vector
    source: str = ""
    later: bool = False


@dataclass(frozen=True, slots=True)
class TransferWanted:
    """Send a published policy's weights into the ``ranks`` processes of an engine."""

    policy: PolicyVersion
    ranks: int


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """Where the learner's ``senders`` ranks wait for the engine's ``ranks`` processes, and the tensors they send there.

    Each sender sends at most ``bucket_bytes`` at once. ``port`` 0: the learner no longer has the policy. ``key`` keeps
    processes of other transfers out. ``backend`` and ``dtypes`` are torch's names.
    """

    backend: str
    address: str
    port: int
    key: str
    senders: int
    ranks: int
    bucket_bytes: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageEntered:
    """The learner is in ``stage`` at ``version``: replay groups decided from ``version`` on, drop other stages' groups.

    ``restored``: the learner's process is new, so the filter raises the epoch. ``left`` is the stage just left. ``run``
    (empty without a checkpoint) and ``last_step``, the last step that the journal had recorded (-1: none), come from
    the learner's checkpoint: the filter stops the run when its journal belongs to another run, or is older.
    """

    stage: int
    stage_version: int
    version: int
    restored: bool
    left: StageFigures | None = None
    run: str = ""
    last_step: int = -1


@dataclass(frozen=True, slots=True)
class StageRecorded:
    """The filter has entered the stage. Checkpoints store ``run``, the run's id.

    ``version`` is that of the stage's next step to close. Until the learner has trained the steps before it, again, it
    publishes no policy: engines have newer ones.
    """

    epoch: int
    run: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class StepTrained:
    """The learner trained ``groups`` in this order; ``figures`` are the learner's figures of the step."""

    stage: int
    version: int
    groups: tuple[str, ...]
    figures: TrainingFigures


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is durable. No replay starts before ``oldest_version``, that of the oldest checkpoint kept."""

    path: str
    version: int
    oldest_version: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The journal has stored the step or the checkpoint."""


@dataclass(frozen=True, slots=True)
class UnfinishedGroups:
    """A scheduler that starts or enters a stage asks which groups are open, and how many were opened."""

    stage: int


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    """An open group and the samples that it still lacks, each with its attempt."""

    opened: GroupOpened
    missing: tuple[Retry, ...]


@dataclass(frozen=True, slots=True)
class InterimOpened:
    """The number of groups that were opened for the evaluation after ``at_step`` steps of an rl stage."""

    at_step: int
    groups: int


@dataclass(frozen=True, slots=True)
class GroupsUnfinished:
    """The open groups of a stage.

    Every number below ``opened`` has been opened in this stage; ``interim_opened`` says the same of each evaluation
    within it. ``kept``: by environment, the ids of the problems that the last select stage has kept; the stage draws
    from no others. None: there was no select stage. ``uncounted``: as of `GroupsProgress`. ``outcomes``: all of the
    stage, where it has a curriculum.
    """

    stage: int
    opened: int
    groups: tuple[UnfinishedGroup, ...]
    interim_opened: tuple[InterimOpened, ...] = ()
    kept: dict[str, tuple[str, ...]] | None = None
    uncounted: int = 0
    outcomes: tuple[GroupOutcome, ...] = ()


@dataclass(frozen=True, slots=True)
class RanksWanted:
    """Rank 0 of a learner asks another rank to begin (``begin``), or how it is.

    ``meeting`` names one start of all ranks. The answer comes within ``seconds``, or as soon as the rank has ended. To
    begin: ``entry`` is the learner's entry of the topology, as TOML; in ``folders`` of its run ``directory`` a file
    ``.ranks-MEETING`` holds that name, for ranks of other hosts; ranks meet at ``port`` of the learner's host.
    """

    meeting: str
    begin: bool
    seconds: float
    entry: str = ""
    directory: str = ""
    folders: tuple[str, ...] = ()
    port: int = 0


@dataclass(frozen=True, slots=True)
class RanksState:
    """How a rank is. ``meeting`` is empty before it begins; ``process`` is the id of its process.

    ``fault``: why it cannot go on. Then ``kind`` is ``mistake`` where a restart would not help, ``torch`` for an error
    of torch, which may be about another rank that is lost, or ``error``.
    """

    meeting: str
    process: int
    ended: bool
    fault: str = ""
    kind: Literal["", "mistake", "error", "torch"] = ""
