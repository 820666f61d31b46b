#!/usr/bin/env bash
# Starts a stage in an allocation that is there already (salloc), on all of its nodes, with the log on this terminal.
#
#   salloc --nodes=2 --gpus-per-node=8 --exclusive --mem=0
#   slurm/attach.sh rl name=mine model=qwen2.5-32b parallel=2x8-80g data=math ...
#
# From outside: RETOOL_JOB=JOBID slurm/attach.sh ... Ctrl-C stops the stage, and another start goes on from its last complete
# checkpoint. Slurm requeues no salloc: what a job of `retool submit` does at its time limit or after a failure is left to you.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
job=${RETOOL_JOB:-${SLURM_JOB_ID:-}}
script=$root/slurm/${1:-}.sbatch
if [[ -z $job || ! -f $script ]]; then
    echo "usage: slurm/attach.sh STAGE [KEY=VALUE]... inside an allocation (salloc), or with RETOOL_JOB=JOBID" >&2
    exit 2
fi
shift
nodes=$(squeue --noheader --jobs="$job" --format=%N)
first=$(scontrol show hostnames "$nodes") # not into head: its end would be scontrol's failure
first=${first%%$'\n'*}
if [[ -z $first ]]; then
    echo "retool: job $job has no nodes yet: squeue --jobs=$job says what it waits for." >&2
    exit 2
fi
# As in a job of sbatch the stage's own process is on the first node, and starts the others' there.
export RETOOL_ROOT=$root SBATCH_EXPORT=ALL
exec srun --jobid="$job" --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist="$first" --unbuffered bash "$script" "$@"
