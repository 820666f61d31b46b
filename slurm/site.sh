# Sourced by the batch scripts: the environment of configs/site/$RETOOL_SITE.yaml, and `in_site`, which replaces this
# shell by a Python of that environment. So Slurm's `--signal=B:` reaches Python itself.
#
# awk reads the file, since nothing of Python is there yet; cluster/site.py refuses what awk would read differently.
# Variables of the caller win: RETOOL_VENV, and whatever the site sets under env.

# Where the time limit is below ten minutes, Slurm's warning comes at once, and would end this shell, or a Python that is
# still importing. cluster/job_signals.py looks at the clock as well.
trap '' USR1

site_file=$root/configs/site/${RETOOL_SITE:-default}.yaml
if [[ ! -f $site_file ]]; then
    echo "retool: no site file $site_file: set RETOOL_SITE to one of:" \
        "$(cd "$root/configs/site" && printf '%s ' *.yaml | sed 's/\.yaml / /g')" >&2
    exit 2
fi

# Prints KEY<tab>VALUE lines; a key inside a section is SECTION.KEY, an item has the key of its list.
read_site() {
    awk '
        { sub(/(^|[ \t]+)#.*$/, ""); sub(/[ \t]+$/, "") }
        /^ *- / { value = $0; sub(/^ *- +/, "", value); show(list, value); next }
        /^ *[A-Za-z_0-9]+:/ {
            key = value = $0
            sub(/^ */, "", key); sub(/:.*/, "", key); sub(/^[^:]*: */, "", value)
            if ($0 ~ /^ /) list = section "." key; else list = section = key
            show(list, value)
        }
        function show(key, value) {
            gsub(/^["\047]|["\047]$/, "", value)
            if (value != "" && value != "null" && value != "~") print key "\t" value
        }
    ' "$1"
}

site_env=()
set_env() { # NAME VALUE: what the caller, or an earlier line, has set stays
    [[ -v $1 ]] || export "$1=$2"
    site_env+=("$1=${!1}")
}

venv='' kind=none image='' mounts=() network='' sandbox_image='' sandbox_command=''
while IFS=$'\t' read -r key value; do
    case $key in
        venv) venv=$value ;;
        container.kind) kind=$value ;;
        container.image) image=$value ;;
        container.mounts) mounts+=("$value") ;;
        modules) # which reads variables that nobody set
            set +u
            module load "$value"
            set -u
            ;;
        env.*) set_env "${key#env.}" "$value" ;;
        network) network=$root/configs/site/network/$value.yaml ;;
        scratch) export TMPDIR=$value ;;
        sandbox_image) sandbox_image=$value ;;
        sandbox_command) sandbox_command=$value ;;
    esac
done < <(read_site "$site_file")
if [[ -n $network ]]; then
    while IFS=$'\t' read -r key value; do set_env "${key#env.}" "$value"; done < <(read_site "$network")
fi

venv=${RETOOL_VENV:-$venv}
[[ -z $venv || $venv == /* ]] || venv=$root/$venv
python=python3
export PYTHONSAFEPATH=1 # the working folder holds no module
[[ -z $venv ]] || python=$venv/bin/python

# Prints, a line each, the words before a command that runs it in an image: the site's, or the one given.
enter() {
    local image=${1:-$image}
    case $kind in
        pyxis) # by its name the steps of a job find the image unpacked; cluster/site.py writes the same words
            printf '%s\n' srun --overlap --ntasks-per-node=1 "--container-image=$image" "--container-workdir=$PWD"
            [[ -n ${1:-} ]] || printf '%s\n' "--container-name=retool-$SLURM_JOB_ID"
            ((${#mounts[@]} == 0)) || printf '%s\n' "--container-mounts=$(IFS=,; echo "${mounts[*]}")"
            ;;
        apptainer)
            printf '%s\n' apptainer exec --nv "--pwd=$PWD"
            ((${#mounts[@]} == 0)) || printf -- '--bind=%s\n' "${mounts[@]}"
            printf '%s\n' "$image"
            ;;
    esac
}

in_site() {
    local words=()
    set -- "${@//%a/${SLURM_ARRAY_TASK_ID:-%a}}" # sbatch --array=1-3 slurm/rl.sbatch name=s-%a seed=%a
    if [[ $kind == none ]]; then
        if [[ ! -x $python ]]; then
            echo "retool: no environment in $venv on $(hostname): run launch/setup.sh where all nodes see it, or name" \
                "another as venv in $site_file." >&2
            exit 2
        fi
        source "$venv/bin/activate"
    else
        local host_python # as for PYTHONPATH and the site's variables below: an image's own values would win
        host_python=$(command -v python3 || command -v /usr/libexec/platform-python) || {
            echo "retool: no python3 on $(hostname): the job's container starts its steps by it (slurm/host_slurm.py)." >&2
            exit 2
        }
        export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
        if [[ $kind == pyxis ]]; then
            mapfile -t words < <(enter)
            # Unpacked on every node before any step has a deadline; which node cannot, the node check says.
            "${words[@]}" true || true
            export HOST_SLURM_AFTER="${words[*]:0:3} enroot remove --force pyxis_retool-$SLURM_JOB_ID"
        fi
        RETOOL_HOST_SLURM=$(mktemp -d /tmp/retool-slurm-XXXXXX)
        export RETOOL_HOST_SLURM
        mounts+=("$RETOOL_HOST_SLURM:$RETOOL_HOST_SLURM")
        mapfile -t words < <(enter)
        # The job runs once, on the node of this shell; what belongs on the others it starts by this node's own srun.
        [[ $kind != pyxis ]] || words+=(--nodes=1 --ntasks=1 "--nodelist=$SLURMD_NODENAME")
        words=("$host_python" "$root/slurm/host_slurm.py" "${words[@]}" env "PYTHONPATH=$PYTHONPATH" PYTHONSAFEPATH=1 "${site_env[@]}")
    fi
    exec "${words[@]}" "$python" "$@"
}
