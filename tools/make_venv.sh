#!/bin/sh
# make_venv.sh PYTHON FOLDER: a virtual environment, also where Debian left ensurepip out.
set -eu
python=$1
folder=$2

if ! command -v "$python" >/dev/null 2>&1; then
    echo "make: $python is not installed; name another with PYTHON=python3.12" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "make: $("$python" --version) is too old, brokerwq needs 3.11; name another with PYTHON=…" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    name=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing $name"
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$name" >/dev/null
    else
        echo "make: $python cannot make virtual environments; run: sudo apt install $name" >&2
        exit 1
    fi
fi
"$python" -m venv --clear "$folder"
