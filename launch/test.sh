#!/usr/bin/env bash
# Runs the tests; makes the environment first.
#
#   launch/test.sh           fast, then e2e
#   launch/test.sh fast      only those that start no engine (minutes)
#   launch/test.sh e2e       only those that start Megatron, vLLM and Ray, and all hostile programs in the sandbox
#   launch/test.sh nightly   the end-to-end tests that are too many for every change
#   launch/test.sh cluster   only those on a Slurm of two nodes, which they start themselves (as root)
#
# Further arguments go to pytest: launch/test.sh fast -k sandbox
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
    fast | e2e | nightly | cluster) parts=("$1"); shift ;;
    *) parts=(fast e2e) ;;
esac
./launch/setup.sh

for part in "${parts[@]}"; do
    folder=tests
    case $part in
        fast) marker="not e2e and not hostile and not cluster and not gpu" ;;
        e2e) marker="(e2e or hostile) and not nightly and not cluster and not gpu" ;;
        nightly) marker="nightly and not gpu" ;;
        cluster) marker="cluster and not gpu" folder=tests/cluster ;;
    esac
    echo "== tests: $part =="
    status=0
    "${RETOOL_VENV:-.venv}/bin/python" -m pytest "$folder" -m "$marker" "$@" || status=$?
    # 5: nothing collected, which is no failure for the part that a selection such as -k leaves empty.
    if ((status != 0 && !(status == 5 && $# > 0))); then
        exit "$status"
    fi
done
