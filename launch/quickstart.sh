#!/usr/bin/env bash
# The whole pipeline on the embedded task: environment, data, SFT, RL, evaluation before and after each, export, a table.
#
#   launch/quickstart.sh                    with the interpreter, in runs/quickstart
#   launch/quickstart.sh --text-only        the baseline without it, in runs/quickstart-text
#   launch/quickstart.sh name=mine recipe=dapo   overrides, given to every stage that has their key
#
# Killed or stopped, it goes on where it was when started again: finished stages return at once, SFT and RL resume.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

overrides=(name=quickstart)
if [[ ${1:-} == --text-only ]]; then
    overrides=(name=quickstart-text rollout.format=none)
    shift
fi
overrides+=("$@")
runs_dir=runs
for override in "${overrides[@]}"; do # the last one of a key counts, as in the overrides themselves
    case $override in
        name=*) name=${override#*=} ;;
        runs_dir=*) runs_dir=${override#*=} ;;
    esac
done

export RETOOL_STAGES="prepare sft rl eval export"
minutes() { printf '%d.%d min' $(($1 / 60)) $(($1 % 60 / 6)); }

retool=${RETOOL_VENV:-.venv}/bin/retool
stage() {
    local start=$SECONDS
    echo "== retool $* ${overrides[*]} =="
    "$retool" "$@" "${overrides[@]}"
    echo "== $*: $(minutes $((SECONDS - start))) =="
}

./launch/setup.sh
SECONDS=0
[[ " ${overrides[*]}" == *" parallel="* ]] || source launch/template.sh
stage prepare
stage eval policy=init
stage sft
stage eval policy=sft
stage rl
stage eval policy=rl
stage export policy=rl
echo "== all stages: $(minutes $SECONDS) =="
"$retool" summary "$runs_dir/$name"
"$retool" figures "$runs_dir/$name" >/dev/null
echo "figures: $runs_dir/$name/figures; more: ${retool%retool}tensorboard --logdir $runs_dir/$name"
