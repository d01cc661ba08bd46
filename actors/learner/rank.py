"""A rank of a learner: the trainer that each rank has, and the actor of every rank but rank 0, which is the learner.

The role is not written in topologies: `agent_rl.config.standard` adds it, with one process for each further rank.
`OtherRanks` is the side of rank 0::

    RanksWanted(begin) --> probe files seen --> a thread: meet the others, `follow` rank 0's orders --> done
                             `--(not there)--> RanksState: the hosts do not share that folder
    the thread fails -------------------------> RanksState says why
    rank 0 is gone before this rank is done, or begins anew --> this process ends, and starts again (`TOGETHER`)

A process of a rank begins once. Before that it has no torch.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import trio

from actors.base import Actor, ActorContext, Call
from actors.exits import end_together
from actors.weights.files import model_directory, named_directory
from agent_rl.config.algorithm import STAGE_START
from agent_rl.config.parallel import mesh_sizes
from agent_rl.config.placement import threads_of
from agent_rl.config.plugins import ContractError, resolve
from agent_rl.config.processes import ActorEntry
from agent_rl.config.standard import learner_of
from agent_rl.config.topology import Topology
from agent_rl.figures import ActorFigures
from agent_rl.files.disk import DiskError
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.messages import RanksState, RanksWanted
from agent_rl.models.model_files import weight_count
from agent_rl.rollout.prompts import load_tokenizer
from transport import LinkEvent, PeerGone, PeerLeft

if TYPE_CHECKING:
    import socket

    from actors.weights.settings import LearnerSettings
    from agent_rl.learning.trainer import Trainer

STOP_SECONDS = 240.0
"""How long a rank goes on when its host stops: rank 0 may have a step to finish and a checkpoint to save."""
FAULT_CHARACTERS = 3000


def build(
    kind: type[Trainer],
    topology: Topology,
    settings: LearnerSettings,
    *,
    actor: str,
    directory: Path,
    base: Path,
    rank: int = 0,
    place: socket.socket | tuple[str, int] | None = None,
) -> Trainer:
    """The trainer of a rank, once all ranks have met at ``place`` (`joined`); None: there is one rank.

    ``directory`` is the run's, ``base`` the topology file's folder. Raises TrainingStoppedError, and ContractError for
    a loss that does not fit.
    """
    from agent_rl.learning.losses.check_loss import check_loss
    from agent_rl.learning.policy_model import ModelOptions
    from agent_rl.learning.ranks import Ranks, joined

    role = actor.rpartition(".")[0]
    entry = topology.actors[learner_of(role, topology.actors[role].class_path)]
    kl, parallel, device = topology.algorithm.kl, topology.model.parallel, settings.device
    model = model_directory(topology, directory)  # before ranks meet: then transformers saves a model on rank 0 alone
    check_loss(topology.algorithm)
    ranks = Ranks()
    if place is not None:
        device = "cuda:0" if device == "cuda" else device  # each process sees its own GPU alone
        ranks = joined(
            rank,
            mesh_sizes(entry.ranks, parallel),
            place=place,
            address=address_of(topology, entry, rank),
            device=device,
            seconds=settings.rank_timeout_seconds,
            meeting_seconds=settings.rank_meeting_seconds,
        )
    threads, most = settings.threads, 0
    if threads == "auto":
        cores = len(os.sched_getaffinity(0))
        threads, most = threads_of(topology, actor, weights=weight_count(model) or 0, cores=cores)
    return kind(
        model,
        dtype=topology.model.dtype,
        device=device,
        algorithm=topology.algorithm,
        threads=threads,
        most_threads=most,
        seed=topology.run.seed,
        compute=topology.model.compute,
        options=ModelOptions(
            activation_checkpointing=parallel.checkpoint_activations,
            compile=parallel.compile,
            offload=parallel.offload,
            logits_mib=settings.logits_mib,
        ),
        lora=topology.model.lora,
        mismatch_tokens=settings.mismatch_tokens,
        tokenizer=load_tokenizer(model, topology, base),
        reference=named_directory(kl.reference) if kl is not None and kl.reference != STAGE_START else None,
        ranks=ranks,
    )


def address_of(topology: Topology, entry: ActorEntry, rank: int) -> str:
    """The address at which the other ranks of a learner with this entry reach the host of a rank."""
    from agent_rl.learning.ranks import LOOPBACK

    hosts = entry.rank_hosts
    return LOOPBACK if len(hosts) == 1 else topology.hosts[hosts[rank // entry.ranks_per_host]].address


class Rank(Actor):
    """One process of a learner's ranks. It follows the orders of rank 0 in a thread."""

    concurrency = 8
    each_needed: ClassVar[bool] = True
    drain_order = 31  # after the learner
    drain_seconds = STOP_SECONDS + 10.0
    receives = (Call(RanksWanted, RanksState),)

    def __init__(self, context: ActorContext) -> None:
        super().__init__(context)
        self._learner = ""
        """The actor of rank 0, once this rank has begun."""
        self._state = RanksState("", os.getpid(), ended=False)
        self._ended = trio.Event()

    async def handle(self, message: RanksWanted) -> RanksState:
        """Begin, or say how this rank is."""
        if self._state.meeting not in {"", message.meeting}:
            self._end_together("rank 0 begins anew")
        if message.begin and not self._state.meeting:
            self._learner, self._state = self.sender, replace(self._state, meeting=message.meeting)
            entry = ActorEntry.model_validate(tomllib.loads(message.entry))
            if fault := await self.context.in_thread(self._unseen, message, entry):
                self._end(TrainingStoppedError(fault))
            else:
                self.context.nursery.start_soon(self._follow, message, entry)
        elif not message.begin:
            with trio.move_on_after(message.seconds):
                await self._ended.wait()
        return self._state

    def _unseen(self, wanted: RanksWanted, entry: ActorEntry) -> str:
        """The message about a folder of rank 0's host that this host does not see; empty: it sees all."""
        host, first = self.context.topology.homes(self.context.role)[self.context.replica], entry.rank_hosts[0]
        for folder in wanted.folders if host != first else ():
            probe = Path(wanted.directory) / folder / f".ranks-{wanted.meeting}"
            with suppress(OSError):
                if probe.read_text() == wanted.meeting:
                    continue
            return (
                f"host {host} does not see {probe.parent} of host {first}: {probe.name}, which host {first} has just "
                "written, is not there. The ranks write that folder together; put it on a file system that their hosts "
                "share, at the same path on each, or make it a link to such a folder (docs/clusters.md, Ranks on "
                "several hosts)"
            )
        return ""

    async def _follow(self, wanted: RanksWanted, entry: ActorEntry) -> None:
        """Follow rank 0 in a thread, until it says that this is the end, or something fails."""
        token = trio.lowlevel.current_trio_token()
        work = partial(self._train, wanted, entry, lambda error: token.run_sync_soon(self._end, error))
        try:
            await self.context.in_thread(work, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
            self._end(None)
        except Exception as error:  # noqa: BLE001 - rank 0 hears of it, and fails
            self._end(error)

    def _train(self, wanted: RanksWanted, entry: ActorEntry, failed: Callable[[Exception], None]) -> None:
        from actors.learner.orders import Writing, follow
        from actors.weights.kept import KeptShares
        from agent_rl.learning.trainer import Trainer

        context, role = self.context, self._learner.rpartition(".")[0]
        topology = context.topology.model_copy(update={"actors": {**context.topology.actors, role: entry}})
        settings = resolve("actor", entry.class_path).Settings.model_validate(entry.settings)
        trainer = build(
            Trainer,
            topology,
            settings,
            actor=context.name,
            directory=Path(wanted.directory),
            base=context.base.absolute(),
            rank=context.replica + 1,
            place=(address_of(topology, entry, 0), wanted.port),
        )
        ranks: Any = trainer.ranks
        follow(trainer, Writing(failed), KeptShares(ranks, str(trainer.device), failed))
        ranks.leave()

    def _end(self, error: Exception | None) -> None:
        """The rank has ended: rank 0 hears why. The first error counts."""
        if self._ended.is_set():
            return
        fault, kind = "", ""
        if isinstance(error, TrainingStoppedError | ContractError | DiskError):
            fault, kind = str(error), "mistake"
        elif error is not None:
            fault, kind = f"{type(error).__name__}: {error}", "torch" if isinstance(error, RuntimeError) else "error"
        if error is not None:
            self.log.error("the rank ends", exc_info=error)
        fault = " ".join(fault.split())[:FAULT_CHARACTERS]
        self._state = replace(self._state, ended=True, fault=fault, kind=cast("Any", kind))
        self._ended.set()

    @property
    def _done(self) -> bool:
        """Whether this rank waits for nothing of rank 0: it has not begun, or was told to end."""
        return not self._state.meeting or (self._state.ended and not self._state.fault)

    def peer_changed(self, event: LinkEvent) -> None:
        """Without rank 0 the other ranks wait for nothing."""
        if isinstance(event, PeerGone | PeerLeft) and event.peer == self._learner and not self._done:
            self._end_together("rank 0 is gone")

    async def stop(self) -> None:
        """Go on until rank 0 ends this rank: the run may be stopping on all hosts."""
        if self._state.meeting:
            with trio.move_on_after(STOP_SECONDS):
                await self._ended.wait()
        if not self._done:
            self._end_together("rank 0 has not ended this rank")

    def _end_together(self, reason: str) -> None:
        """End this process, whose thread may wait in torch."""
        self.log.info("ends", reason=reason)
        end_together()

    def busy_seconds(self) -> float:
        """None of its own: it works when rank 0 works, which counts that."""
        return 0.0

    def status(self) -> tuple[str, ActorFigures]:
        """Whether the rank trains."""
        return ("idle" if self._done else "running"), ActorFigures()
