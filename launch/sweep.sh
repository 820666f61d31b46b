#!/usr/bin/env bash
# Runs stages once for every combination of values, one run after another, each in a folder of its own.
#
#   launch/sweep.sh rl name=s over seed=1,2,3                          runs/s-seed_1, s-seed_2, s-seed_3
#   launch/sweep.sh prepare sft rl eval name=s data=math over recipe=retool,dapo seed=1,2
#   RETOOL_SWEEP="retool submit" launch/sweep.sh rl name=s over seed=1,2,3      a job each instead, all at once
#
# Before `over`: stages and overrides of all runs; after it: a key, and its values by commas. A run that fails does not end the
# sweep; the last line tells which did. Started again, it goes on: what is complete returns at once. `retool view` and
# `retool figures` lay the runs over each other.
set -euo pipefail

retool=${RETOOL_VENV:-$(dirname "${BASH_SOURCE[0]}")/../.venv}/bin/retool
stages=() common=() axes=() name=sweep
into=common
for word in "$@"; do
    case $into:$word in
        *:over) into=axes ;;
        common:name=*) name=${word#name=} ;;
        common:*=*) common+=("$word") ;;
        common:*) stages+=("$word") ;;
        axes:*=*) axes+=("$word") ;;
        *) axes=() && break ;;
    esac
done
if ((${#stages[@]} == 0 || ${#axes[@]} == 0)); then
    echo "usage: launch/sweep.sh STAGE... [KEY=VALUE]... over KEY=VALUE,VALUE..." >&2
    exit 2
fi

runs=('') # the overrides of each run, by spaces
for axis in "${axes[@]}"; do
    IFS=, read -r -a values <<<"${axis#*=}"
    longer=()
    for run in "${runs[@]}"; do
        for value in "${values[@]}"; do longer+=("$run ${axis%%=*}=$value"); done
    done
    runs=("${longer[@]}")
done

[[ -n ${RETOOL_SWEEP:-} || " ${common[*]} ${axes[*]}" == *" parallel="* ]] || source "$(dirname "${BASH_SOURCE[0]}")/template.sh"
export RETOOL_STAGES=${stages[*]} # each takes of the overrides those that it has
failed=()
for run in "${runs[@]}"; do
    read -r -a own <<<"$run"
    suffix=$(printf -- '-%s' "${own[@]##*.}") # of a key the last part
    folder=$name${suffix//[=\/]/_}
    echo "== sweep: $folder =="
    if [[ -n ${RETOOL_SWEEP:-} ]]; then
        $RETOOL_SWEEP "${stages[@]}" "name=$folder" "${common[@]}" "${own[@]}" || failed+=("$folder")
        continue
    fi
    for stage in "${stages[@]}"; do
        code=0
        "$retool" "$stage" "name=$folder" "${common[@]}" "${own[@]}" || code=$?
        ((code < 128)) || exit "$code" # Ctrl-C
        ((code == 0)) || { failed+=("$folder") && break; }
    done
done
if ((${#failed[@]} > 0)); then
    echo "sweep: ${#failed[@]} of ${#runs[@]} runs failed: ${failed[*]}" >&2
    exit 1
fi
if [[ -n ${RETOOL_SWEEP:-} ]]; then
    echo "sweep: handed ${#runs[@]} runs to: $RETOOL_SWEEP"
else
    echo "sweep: ${#runs[@]} runs are complete."
fi
