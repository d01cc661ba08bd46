"""A batch script for Slurm: one supervisor on each node, addresses resolved in the job, continued after a requeue.

::

    sbatch --> batch shell, on the first node --srun--> a task on each node: agent-rl run FILE hosts.toml --host NAME
                  | writes hosts.toml and the key                 ^ the first node has the main host
                  |--USR1 (the time is nearly over)--SIGTERM----->| stops all hosts; then the job is requeued
                  `--TERM (scancel, a host that failed)--SIGTERM->| stops all hosts

Slurm sends both signals to the batch shell alone: a signal to all processes of a job would also reach the actors and
the tool calls, and the supervisor could not stop them in order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.cluster.plan import STOPPED, HostNeeds
from agent_rl.config.source import Fault, Source

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names of hosts that a shell script can hold in a list."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What a batch script is made of, besides the hosts."""

    name: str
    files: Sequence[Path]
    """Relative to ``folder``, or absolute."""
    overrides: Sequence[str]
    command: str
    """The shell words that start ``agent-rl`` on every node."""
    folder: Path
    """The working directory, on a file system that all nodes share."""
    has_key: bool
    """Whether the topology names a key file."""
    time: str
    stop_seconds: int
    """Seconds before the end of the time at which the run is stopped."""
    gpus: int | None = None
    """GPUs of a node; None: what the hosts need."""
    processors: int | None = None
    """Processors of a node; None: what the hosts need."""
    options: Sequence[str] = ()
    """Further options of sbatch, as ``partition=gpu``."""
    run: Path = Path()
    """The run directory, relative to ``folder``, or absolute."""
    keep: Path | None = None
    """Where the run directory is copied at the end of the job, and copied from at its start; None: nowhere."""


def name_faults(hosts: Sequence[HostNeeds], source: Source) -> list[Fault]:
    """A fault for each host whose name the script cannot hold."""
    return [
        source.fault(("hosts", host.name), "this name cannot stand in a batch script", "write letters, digits, _ . -")
        for host in hosts
        if not NAME.fullmatch(host.name)
    ]


def batch_script(hosts: Sequence[HostNeeds], job: SlurmJob) -> str:
    """The script. ``hosts`` are the hosts in use, the main host first: it runs on the node of the batch shell."""
    gpus = max(host.gpus for host in hosts) if job.gpus is None else job.gpus
    processors = max(host.processors for host in hosts) if job.processors is None else job.processors
    options = [
        f"job-name={job.name}",
        f"nodes={len(hosts)}",
        "ntasks-per-node=1",
        f"cpus-per-task={processors}",
        *([f"gpus-per-node={gpus}"] if gpus else []),
        f"time={job.time}",
        f"signal=B:USR1@{job.stop_seconds}",
        "requeue",
        "open-mode=append",
        f"chdir={job.folder}",
        *job.options,
    ]
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH --{option}" for option in options),
        folder=shlex.quote(str(job.folder)),
        command=job.command,
        hosts=" ".join(host.name for host in hosts),
        needs="\n".join(
            f"#   {host.name}: {host.gpus} GPUs, {host.processors} processors; {', '.join(host.actors)}"
            for host in hosts
        ),
        files=shlex.join(map(str, job.files)),
        overrides="".join(f" {shlex.quote(f'--set={override}')}" for override in job.overrides),
        count=len(hosts),
        key="" if job.has_key or len(hosts) == 1 else _KEY,
        addresses=_ADDRESSES if len(hosts) > 1 else "",
        stopped=STOPPED,
        fetch=""
        if job.keep is None
        else _FETCH % {"keep": shlex.quote(str(job.keep)), "run": shlex.quote(str(job.run))},
        keep="" if job.keep is None else _KEEP,
    )


_SCRIPT = """\
#!/bin/bash
# Made by `agent-rl render slurm`. Submit it with sbatch. Each host of the topology gets a node of its own:
{needs}
{options}
set -u
cd {folder} || exit 2
agent_rl=({command})
hosts=({hosts})
job=$PWD/.agent-rl-job-$SLURM_JOB_ID
mkdir -p -m 700 "$job" || exit 2
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${{#nodes[@]}}" -ne {count} ]; then
    echo "the job has ${{#nodes[@]}} nodes, and the topology has {count} hosts; leave --nodes as it was rendered" >&2
    exit 2
fi
for i in "${{!hosts[@]}}"; do echo "${{nodes[i]}} ${{hosts[i]}}"; done > "$job/nodes"
: > "$job/hosts.toml"
rm -f "$job/main.pid"
{addresses}{key}{fetch}
stopping=
stop() {{ # $1: what follows when the run has stopped
    stopping=${{stopping:-$1}}
    if [ -s "$job/main.pid" ]; then kill -TERM "$(< "$job/main.pid")" 2> /dev/null; else kill -TERM "$step"; fi
}}
trap 'stop requeue' USR1
trap 'stop end' TERM INT

# On each node. The main host's supervisor keeps the process number that the batch shell signals.
node='
job=$1; shift
host=$(awk -v node="$SLURMD_NODENAME" "\\$1 == node {{ print \\$2 }}" "$job/nodes")
if [ "$host" = "$(awk "NR == 1 {{ print \\$2 }}" "$job/nodes")" ]; then
    "$@" --host "$host" &
    echo $! > "$job/main.pid"
    trap "" TERM
    wait $!; code=$?
    # A supervisor that was killed told nobody.
    [ $code -le 128 ] || scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"
    exit $code
fi
"$@" --host "$host"; code=$?
[ $code -eq 0 ] || [ $code -eq {stopped} ] || scancel --batch --signal=TERM "$SLURM_JOB_ID"
exit $code
'
srun --nodes={count} --ntasks={count} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \\
    bash -c "$node" node "$job" \\
    "${{agent_rl[@]}}" run {files} "$job/hosts.toml"{overrides} --stopped-exit-code={stopped} &
step=$!
while kill -0 $step 2> /dev/null; do wait $step; done # a trap ends a wait
wait $step; code=$?
{keep}if [ "$stopping" = requeue ] && [ $code -eq {stopped} ]; then
    echo "the time of the job is over; it is requeued and goes on from its journal"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
rm -rf "$job"
exit $code
"""

_ADDRESSES = """
# The address of a node that the other nodes can reach. A node may know its own name as 127.0.1.1 alone: then its
# address is the one from which it reaches another node.
address() {
    local found
    found=$(getent ahosts "$1" | awk '$1 !~ /^(127\\.|::1$|fe80:)/ { print $1; exit }')
    if [ -z "$found" ] && [ "$1" = "${nodes[0]}" ]; then
        found=$(ip route get "$(address "${nodes[1]}")" | sed -n 's/.* src \\([^ ]*\\).*/\\1/p')
    fi
    if [ -z "$found" ]; then echo "no address is known for the node $1" >&2; return 1; fi
    echo "$found"
}
for i in "${!hosts[@]}"; do
    found=$(address "${nodes[i]}") || exit 2
    printf '[hosts."%s"]\\naddress = "%s"\\n' "${hosts[i]}" "$found" >> "$job/hosts.toml"
done
"""

_FETCH = """
# The run directory is on a disk of the node: the newest state is here, or where the last node copied it.
keep=%(keep)s run=%(run)s
if [ "$keep/journal.sqlite" -nt "$run/journal.sqlite" ]; then # also where only the first one exists
    rm -rf "$run" "$run.partial"
    mkdir -p "$(dirname "$run")" && cp -a "$keep" "$run.partial" && mv "$run.partial" "$run" || exit 2
fi
"""

_KEEP = """\
rm -rf "$keep.partial" "$keep.old"
mkdir -p "$(dirname "$keep")" && cp -a "$run" "$keep.partial" || { echo "$run is not copied to $keep" >&2; exit 1; }
[ ! -e "$keep" ] || mv "$keep" "$keep.old"
mv "$keep.partial" "$keep" && rm -rf "$keep.old"
"""

_KEY = """
[ -e "$job/cluster.key" ] || "${agent_rl[@]}" keys "$job/cluster.key" > /dev/null || exit 2
printf '[security]\\nkey_file = "%s"\\n' "$job/cluster.key" >> "$job/hosts.toml"
"""
