# Sourced by the batch scripts: the environment of configs/site/$RETOOL_SITE.yaml, and `in_site`, which replaces this
# shell by a Python of that environment. So Slurm's `--signal=B:` reaches Python itself.
#
# awk reads the file, since nothing of Python is there yet; cluster/site.py refuses what awk would read differently.
# Variables of the caller win: RETOOL_VENV, and whatever the site sets under env.

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

venv='' kind=none image='' mounts=() sandbox_image='' sandbox_command=''
while IFS=$'\t' read -r key value; do
    case $key in
        venv) venv=$value ;;
        container.kind) kind=$value ;;
        container.image) image=$value ;;
        container.mounts) mounts+=("$value") ;;
        modules) module load "$value" ;;
        env.*) [[ -v ${key#env.} ]] || export "${key#env.}=$value" ;;
        scratch) export TMPDIR=$value ;;
        sandbox_image) sandbox_image=$value ;;
        sandbox_command) sandbox_command=$value ;;
    esac
done < <(read_site "$site_file")

venv=${RETOOL_VENV:-$venv}
[[ -z $venv || $venv == /* ]] || venv=$root/$venv
python=python3
[[ -z $venv ]] || python=$venv/bin/python

# Prints, a line each, the words before a command that runs it in an image: the site's, or the one given.
enter() {
    local image=${1:-$image}
    case $kind in
        pyxis)
            printf '%s\n' srun --overlap --ntasks-per-node=1 "--container-image=$image" "--container-workdir=$PWD"
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
    if [[ $kind == none ]]; then
        if [[ ! -x $python ]]; then
            echo "retool: no environment in $venv on $(hostname): run launch/setup.sh where all nodes see it, or name" \
                "another as venv in $site_file." >&2
            exit 2
        fi
        source "$venv/bin/activate"
    else
        mapfile -t words < <(enter)
        # The job runs once, on the node of this shell; it starts what belongs on the others.
        [[ $kind != pyxis ]] || words+=(--nodes=1 --ntasks=1 "--nodelist=$SLURMD_NODENAME")
        export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
    fi
    exec "${words[@]}" "$python" "$@"
}
