#!/usr/bin/env bash
# Runs the tests; makes the environment first.
#
#   launch/test.sh           fast, then e2e
#   launch/test.sh fast      only those that start no engine (minutes)
#   launch/test.sh e2e       only those that start Megatron, vLLM and Ray
#   launch/test.sh cluster   only those on a Slurm of two nodes, which they start themselves (as root)
#   launch/test.sh hostile   every hostile program at every level of isolation that this machine offers
#   launch/test.sh rehearsal sixteen processes in the layout of two nodes of eight GPUs, on a Slurm if there is one (as root);
#                            REHEARSAL_LAYERS=4: four layers, for a short one
#   launch/test.sh nightly   the end-to-end and Slurm tests that are too long for every change
#
# Further arguments go to pytest: launch/test.sh fast -k sandbox
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
    fast | e2e | cluster | hostile | rehearsal | nightly) parts=("$1"); shift ;;
    *) parts=(fast e2e) ;;
esac
./launch/setup.sh
unset PYTHONDONTWRITEBYTECODE # of many containers: hundreds of processes would compile the same files
"${RETOOL_VENV:-.venv}/bin/ruff" check --quiet . # seconds, and tests are code too
"${RETOOL_VENV:-.venv}/bin/ruff" format --check --quiet .

for part in "${parts[@]}"; do
    folder=tests options=() types=
    case $part in
        fast)
            marker="not e2e and not nightly and not hostile and not cluster and not rehearsal and not gpu"
            options=(-n 3 --dist loadfile --max-worker-restart 0) # one starts while another waits: tests/file_scheduling.py
            "${RETOOL_VENV:-.venv}/bin/python" -m mypy & types=$! ;; # beside the tests: they wait now and then
        e2e)
            marker="e2e and not nightly and not cluster and not gpu"
            options=(-n 2 --dist load --maxschedchunk 1) ;; # an engine starts while another waits
        cluster)
            marker="cluster and not nightly and not gpu" folder=tests/cluster
            options=(-n 3 --dist loadfile) ;; # a Slurm a file: its tests wait for Slurm's clocks most of the time
        hostile) marker="hostile" folder=tests/sandbox/hostile ;;
        rehearsal) marker="rehearsal" folder=tests/rehearsal options=(-s) ;; # it prints what it compares
        nightly) marker="nightly and not gpu" ;;
    esac
    echo "== tests: $part =="
    status=0
    "${RETOOL_VENV:-.venv}/bin/python" -m pytest "$folder" -m "$marker" "${options[@]}" "$@" || status=$?
    [[ -z $types ]] || wait "$types" || exit
    # 5: nothing collected, which is no failure for the part that a selection such as -k leaves empty.
    if ((status != 0 && !(status == 5 && $# > 0))); then
        exit "$status"
    fi
done
