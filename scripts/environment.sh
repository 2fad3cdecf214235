# Sourced by the other scripts: a virtual environment inside the checkout, made when it is missing or old.

fail() {
    echo "$0: $*" >&2
    exit 2
}

# The first Python that is new enough.
find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; none of python3.13, python3.12, python3.11, python3 is."
}

# apt_install PACKAGE...: one at a time, and after other programs that hold apt's locks.
apt_install() {
    (
        flock 8
        local wait=(-o DPkg::Lock::Timeout=600)
        apt-get update -qq "${wait[@]}" >/dev/null || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${wait[@]}" "$@" >/dev/null
    ) 8>"${TMPDIR:-/tmp}/warmroute-apt.lock"
}

# Packages are compiled when they are imported, which is a fraction of what is installed. Python that is told to keep no
# bytecode keeps it where tests/conftest.py would: else each of hundreds of processes would compile again.
keep_bytecode() {
    [[ -z ${PYTHONDONTWRITEBYTECODE-} ]] || export PYTHONPYCACHEPREFIX=$PWD/.pytest_cache/bytecode
    unset PYTHONDONTWRITEBYTECODE
}

# Debian and Ubuntu ship Python without venv.
require_venv() {
    local python=$1 version
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
        fail "$python has no venv module; install the package python$version-venv."
    fi
    echo "installing python$version-venv"
    apt_install "python$version-venv" || apt_install python3-venv ||
        fail "apt-get could not install python$version-venv."
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module, even with python$version-venv."
}

# fresh DIR STAMP: whether DIR was made of that.
fresh() {
    [[ -f $1/.stamp && "$(<"$1/.stamp")" == "$2" ]]
}

# uv ARGUMENT...: uv, which installs in a tenth of pip's time. An environment of its own has it, made by pip.
uv() {
    local dir=.venv-uv wanted="uv>=0.13,<0.14"
    (
        mkdir -p "$dir"
        flock 8 # several scripts begin side by side
        [[ -x $dir/bin/uv ]] && fresh "$dir" "$wanted" && exit
        echo "setting up $dir, which installs the rest" >&2
        require_venv "$python"
        "$python" -m venv "$dir"
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "$wanted"
        echo "$wanted" >"$dir/.stamp"
    ) 8>"$dir.lock"
    local quiet=--quiet
    [[ ! -t 2 ]] || quiet= # a person sees what is downloaded
    "$dir/bin/uv" $quiet "$@"
}

# new_environment DIR PYTHON PACKAGE...: an environment with these packages, in the place of what was there. It has pip,
# too, which the `warmroute` command names where an extra is missing.
new_environment() {
    uv venv --clear --seed --python "$2" "$1"
    uv pip install --python "$1/bin/python" "${@:3}"
}

# locked_environment DIR EXTRAS: DIR holds the checkout with EXTRAS, in the versions of uv.lock. The lock has addresses of
# PyPI's files: a site that reaches a mirror alone leaves WARMROUTE_LOCKED unset, and gets what the ranges allow.
locked_environment() {
    local extra
    uv venv --clear --seed --python "$python" "$1"
    for extra in ${2//,/ }; do
        set -- "$@" --extra "$extra"
    done
    UV_PROJECT_ENVIRONMENT="$1" uv sync --frozen --inexact --python "$python" "${@:3}"
}

# compiled_wheel: the path of the only compiled wheel in dist/, which scripts/release has built.
compiled_wheel() {
    local found=("$PWD"/dist/*-cp*.whl)
    [[ ${#found[@]} == 1 && -f ${found[0]} ]] || fail "expected one compiled wheel in dist/, which scripts/release makes; found: ${found[*]}"
    echo "${found[0]}"
}

# stamp_of PYTHON: what an environment depends on: the Python and the requirements of the project; where they are locked,
# the versions, too.
stamp_of() {
    "$1" -c 'import hashlib, sys
digests = (hashlib.sha256(open(name, "rb").read()).hexdigest() for name in sys.argv[1:])
print(sys.version.split()[0], *digests)' pyproject.toml ${WARMROUTE_LOCKED:+uv.lock}
}

# has_environment DIR EXTRAS [REQUIREMENT...]: whether DIR was set up for them and nothing changed since. Somebody's
# `python -m venv DIR` writes pyvenv.cfg anew, and what pip then installs is not the checkout.
has_environment() {
    local dir=$1
    shift
    [[ -x $dir/bin/python && ! $dir/pyvenv.cfg -nt $dir/.stamp ]] && fresh "$dir" "$base $*"
}

# environment DIR EXTRAS [REQUIREMENT...]: DIR holds the checkout with EXTRAS, editable. A stamp says what was
# installed; while it fits, nothing is done. With WARMROUTE_LOCKED=1 the versions are those of uv.lock, as in CI.
environment() {
    local dir=$1 extras=$2
    has_environment "$@" && return
    echo "setting up $dir ($("$python" --version))"
    rm -f "$dir/.stamp"
    if [[ -n ${WARMROUTE_LOCKED-} && $# == 2 ]]; then
        locked_environment "$@"
    else
        new_environment "$dir" "$python" -e ".[$extras]" "${@:3}"
    fi
    echo "$base ${*:2}" >"$dir/.stamp"
}

python=$(find_python)
base=$(stamp_of "$python")
