#!/usr/bin/env bash
# Collects everything that launch/setup.sh installs, for a machine without a network: every wheel at the version of an
# environment that setup.sh has made here, those that had to be compiled (Transformer Engine) too.
#
#   launch/setup.sh && launch/wheelhouse.sh DIR       here
#   RETOOL_WHEELHOUSE=DIR launch/setup.sh             there, with the same Python, and for GPUs the same CUDA
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

(($# == 1)) || { echo "usage: launch/wheelhouse.sh DIR" >&2; exit 2; }
venv=${RETOOL_VENV:-$PWD/.venv}
[[ -f $venv/.retool-setup ]] || { echo "wheelhouse: $venv is not there or not whole: run ./launch/setup.sh first." >&2; exit 1; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
index=()
[[ -z ${RETOOL_TORCH_INDEX:-} ]] || index=(--extra-index-url "$RETOOL_TORCH_INDEX")
"${pip[@]}" freeze --exclude-editable >"$folder/requirements.txt"
"${pip[@]}" wheel --quiet --quiet --no-deps --no-build-isolation "${index[@]}" --wheel-dir "$folder" -r "$folder/requirements.txt"
# In an environment of its own pip builds this package with it.
"${pip[@]}" wheel --quiet --quiet --no-deps --wheel-dir "$folder" 'setuptools>=77'
read -r _ asked <"$venv/.retool-setup"
echo "$asked" >"$folder/OF"
(cd "$folder" && sha256sum -- *.whl requirements.txt >SHA256SUMS)
echo "wheelhouse: $(wc -l <"$folder/requirements.txt") packages, $(du -sh "$folder" | cut -f1), in $folder"
