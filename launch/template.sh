#!/usr/bin/env bash
# For quickstart.sh and sweep.sh, which source it: one process imports the libraries, and every stage's are forked from it
# until the script ends. Needs `retool`, the path of the command. Not for GPUs, where the layout decides what is imported.
set -euo pipefail
template=$(mktemp -d /tmp/retool-template-XXXXXX) # a short path, for its socket
trap 'kill "$server" 2>/dev/null || true; rm -rf "$template"' EXIT
PYTHONSAFEPATH=1 "${retool%retool}python" -m retool_mcore.runner.template "$template/socket" &
server=$!
until [[ -S $template/socket ]] || ! kill -0 "$server" 2>/dev/null; do sleep 0.05; done
export RETOOL_TEMPLATE=$template/socket RETOOL_FORKED_PYTHON=$template/python PYTHON_EXEC=$template/python
