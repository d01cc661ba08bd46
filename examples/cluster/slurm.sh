#!/bin/bash
# A batch script for Slurm: each host of a topology has a node of its own. The run is stopped in order before the time
# of the job is over, and the requeued job continues it. docs/clusters.md says what a topology needs for it.
#
# It is written for `run.toml` with two hosts. Nodes are alike, so each has what the host needs that needs most:
#   trainer: 1 GPU, 4 processors; kv_scheduler.0, roc_filter.0, learner.0
#   rollout: 2 GPUs, 4 processors; rollout_generator.0, rollout_generator.1, tool_executor.0
#
# Copy it, change what follows, and submit it with sbatch:
# - /shared/mine, everywhere: the folder of the topology, on a file system that all nodes share;
# - the options of Slurm: --nodes is the number of hosts; --cpus-per-task is one for each process, the supervisor too,
#   and each thread of torch; --signal says how many seconds before the end of the job the run is stopped: more where
#   a checkpoint of your model takes longer;
# - agent_rl: the words that start agent-rl on the nodes;
# - hosts: the names of the hosts (letters, digits, _ . -), the main host, which is the learner's, first;
# - run.toml in the line of srun: the topology, with its overlays after it. Each node has a run directory of its own:
#   generators need the link `weights`, and all ranks of the learner must be on one host;
# - run: the run directory, on a disk of the node, and keep: the shared folder for it between jobs. Where all nodes
#   share a disk that can hold the journal, leave out the two parts with $keep.
#SBATCH --job-name=mine
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir=/shared/mine
#SBATCH --partition=gpu
set -u
cd /shared/mine || exit 2
agent_rl=(/shared/mine/.venv/bin/agent-rl)
hosts=(trainer rollout)
keep=/shared/mine/kept run=/tmp/mine

job=$PWD/.agent-rl-job-$SLURM_JOB_ID
mkdir -p -m 700 "$job" || exit 2
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#nodes[@]}" -ne "${#hosts[@]}" ]; then
    echo "the job has ${#nodes[@]} nodes, and the topology has ${#hosts[@]} hosts; write --nodes=${#hosts[@]}" >&2
    exit 2
fi
for i in "${!hosts[@]}"; do echo "${nodes[i]} ${hosts[i]}"; done > "$job/nodes"
: > "$job/hosts.toml"
rm -f "$job/main.pid"
# A topology of one host needs neither addresses nor a key: leave out the lines from here up to those of the key.
# The address of a node that the other nodes can reach. A node may know its own name as 127.0.1.1 alone: then its
# address is the one from which it reaches another node.
address() {
    local found
    found=$(getent ahosts "$1" | awk '$1 !~ /^(127\.|::1$|fe80:)/ { print $1; exit }')
    if [ -z "$found" ] && [ "$1" = "${nodes[0]}" ]; then
        found=$(ip route get "$(address "${nodes[1]}")" | sed -n 's/.* src \([^ ]*\).*/\1/p')
    fi
    if [ -z "$found" ]; then echo "no address is known for the node $1" >&2; return 1; fi
    echo "$found"
}
for i in "${!hosts[@]}"; do
    found=$(address "${nodes[i]}") || exit 2
    printf '[hosts."%s"]\naddress = "%s"\n' "${hosts[i]}" "$found" >> "$job/hosts.toml"
done
[ -e "$job/cluster.key" ] || "${agent_rl[@]}" keys "$job/cluster.key" > /dev/null || exit 2
printf '[security]\nkey_file = "%s"\n' "$job/cluster.key" >> "$job/hosts.toml"
# The run directory is on a disk of the node: the newest state is here, or where the last node copied it.
if [ "$keep/journal.sqlite" -nt "$run/journal.sqlite" ]; then # also where only the first one exists
    rm -rf "$run" "$run.partial"
    mkdir -p "$(dirname "$run")" && cp -a "$keep" "$run.partial" && mv "$run.partial" "$run" || exit 2
fi
stopping=
stop() { # $1: what follows when the run has stopped
    stopping=${stopping:-$1}
    if [ -s "$job/main.pid" ]; then kill -TERM "$(< "$job/main.pid")" 2> /dev/null; else kill -TERM "$step"; fi
}
# Slurm signals the batch shell alone, and the shell signals the main host's supervisor, which stops the run in order.
trap 'stop requeue' USR1
trap 'stop end' TERM INT

# On each node. The main host's supervisor keeps the process number that the batch shell signals. 75 is its exit code
# where the run was stopped before it was finished.
node='
job=$1; shift
host=$(awk -v node="$SLURMD_NODENAME" "\$1 == node { print \$2 }" "$job/nodes")
if [ "$host" = "$(awk "NR == 1 { print \$2 }" "$job/nodes")" ]; then
    "$@" --host "$host" &
    echo $! > "$job/main.pid"
    trap "" TERM
    wait $!; code=$?
    # A supervisor that was killed told nobody.
    [ $code -le 128 ] || scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"
    exit $code
fi
"$@" --host "$host"; code=$?
[ $code -eq 0 ] || [ $code -eq 75 ] || scancel --batch --signal=TERM "$SLURM_JOB_ID"
exit $code
'
srun --nodes="${#hosts[@]}" --ntasks="${#hosts[@]}" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \
    bash -c "$node" node "$job" \
    "${agent_rl[@]}" run run.toml "$job/hosts.toml" "--set=run.directory=$run" --stopped-exit-code=75 &
step=$!
while kill -0 $step 2> /dev/null; do wait $step; done # a trap ends a wait
wait $step; code=$?
rm -rf "$keep.partial" "$keep.old"
mkdir -p "$(dirname "$keep")" && cp -a "$run" "$keep.partial" || { echo "$run is not copied to $keep" >&2; exit 1; }
[ ! -e "$keep" ] || mv "$keep" "$keep.old"
mv "$keep.partial" "$keep" && rm -rf "$keep.old"
if [ "$stopping" = requeue ] && [ $code -eq 75 ]; then
    echo "the time of the job is over; it is requeued and goes on from its journal"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
rm -rf "$job"
exit $code
