#!/bin/sh
# Create the environment: install.sh VENV cpu (from the lock files) or VENV gpu (all of SGLang).
# Called by `make install`.
set -eu
venv=$1
extra=${2:-cpu}
python=${PYTHON:-python3}
here=$(dirname "$0")

fail() { echo "kvtop: $1" >&2; exit 1; }
command -v "$python" >/dev/null || fail "$python is missing; install Python 3.11 or later"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; install Python 3.11 or later, or name one with PYTHON=..."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "Python's venv module is missing; install it (Debian: apt-get install python3-venv)"
{ command -v cc && command -v c++; } >/dev/null ||
    echo "kvtop: no C and C++ compiler (cc, c++): the CPU kernels fall back to torch and are much" \
        "slower, and n-gram arms cannot start; install one (Debian: apt-get install g++)" >&2

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$venv could not be created"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install -qq --root-user-action=ignore "$@"; }
case $extra in
cpu) ;;
gpu)
    echo "kvtop: installing all of SGLang into $venv (about 15 GB)"
    pip --editable "$here/..[gpu,test]"
    exit
    ;;
*) fail "EXTRA=$extra is unknown; it is cpu or gpu" ;;
esac
# The lock is complete, so nothing is resolved; byte code is made at the first import.
echo "kvtop: installing into $venv (some minutes, about 7 GB)"
pip --no-deps --no-compile -r "$here/cpu.lock"
pip --no-deps --no-compile -r "$here/no-deps.lock"  # without their CUDA and model-hub dependencies
pip --no-deps --no-build-isolation --editable "$here/.."
