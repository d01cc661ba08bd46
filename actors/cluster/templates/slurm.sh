#!/bin/bash
# Made by `agent-rl render slurm`. Submit it with sbatch. Each host of the topology gets a node of its own:
{% for host in hosts %}
#   {{ host.name }}: {{ host.gpus }} GPUs, {{ host.processors }} processors; {{ host.actors|join(", ")|one_line }}
{% endfor %}
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ hosts|length }}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={{ processors }}
{% if gpus %}
#SBATCH --gpus-per-node={{ gpus }}
{% endif %}
#SBATCH --time={{ time|one_line }}
#SBATCH --signal=B:USR1@{{ stop_seconds }}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --chdir={{ folder|one_line }}
{% for option in options %}
#SBATCH --{{ option|one_line }}
{% endfor %}
set -u
cd {{ folder|quoted }} || exit 2
agent_rl=({{ command }})
hosts=({{ hosts|map(attribute="name")|join(" ") }})
job=$PWD/.agent-rl-job-$SLURM_JOB_ID
mkdir -p -m 700 "$job" || exit 2
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#nodes[@]}" -ne {{ hosts|length }} ]; then
    echo "the job has ${#nodes[@]} nodes, and the topology has {{ hosts|length }} hosts; leave --nodes as it was rendered" >&2
    exit 2
fi
for i in "${!hosts[@]}"; do echo "${nodes[i]} ${hosts[i]}"; done > "$job/nodes"
: > "$job/hosts.toml"
rm -f "$job/main.pid"
{% if hosts|length > 1 %}
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
{% if not has_key %}
[ -e "$job/cluster.key" ] || "${agent_rl[@]}" keys "$job/cluster.key" > /dev/null || exit 2
printf '[security]\nkey_file = "%s"\n' "$job/cluster.key" >> "$job/hosts.toml"
{% endif %}
{% endif %}
{% if keep %}
# The run directory is on a disk of the node: the newest state is here, or where the last node copied it.
keep={{ keep|quoted }} run={{ run|quoted }}
if [ "$keep/journal.sqlite" -nt "$run/journal.sqlite" ]; then # also where only the first one exists
    rm -rf "$run" "$run.partial"
    mkdir -p "$(dirname "$run")" && cp -a "$keep" "$run.partial" && mv "$run.partial" "$run" || exit 2
fi
{% endif %}
stopping=
stop() { # $1: what follows when the run has stopped
    stopping=${stopping:-$1}
    if [ -s "$job/main.pid" ]; then kill -TERM "$(< "$job/main.pid")" 2> /dev/null; else kill -TERM "$step"; fi
}
trap 'stop requeue' USR1
trap 'stop end' TERM INT

# On each node. The main host's supervisor keeps the process number that the batch shell signals.
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
[ $code -eq 0 ] || [ $code -eq {{ stopped }} ] || scancel --batch --signal=TERM "$SLURM_JOB_ID"
exit $code
'
srun --nodes={{ hosts|length }} --ntasks={{ hosts|length }} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 \
    bash -c "$node" node "$job" \
    "${agent_rl[@]}" run {{ files|map("quoted")|join(" ") }} "$job/hosts.toml"{% for override in overrides %} {{ ("--set=" ~ override)|quoted }}{% endfor %} --stopped-exit-code={{ stopped }} &
step=$!
while kill -0 $step 2> /dev/null; do wait $step; done # a trap ends a wait
wait $step; code=$?
{% if keep %}
rm -rf "$keep.partial" "$keep.old"
mkdir -p "$(dirname "$keep")" && cp -a "$run" "$keep.partial" || { echo "$run is not copied to $keep" >&2; exit 1; }
[ ! -e "$keep" ] || mv "$keep" "$keep.old"
mv "$keep.partial" "$keep" && rm -rf "$keep.old"
{% endif %}
if [ "$stopping" = requeue ] && [ $code -eq {{ stopped }} ]; then
    echo "the time of the job is over; it is requeued and goes on from its journal"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
rm -rf "$job"
exit $code
