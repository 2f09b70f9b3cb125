#!/bin/sh
# test_wheel.sh CACHE: run the contract tests against the built wheel as a user has it: in another
# folder, with another virtual environment, the checkout out of reach. PYTHON builds the wheel.
set -eu
here=$(pwd)
mkdir -p "$1"
cache=$(cd "$1" && pwd)
python=${PYTHON:?names the interpreter of the development environment}
venv=$cache/wheel-venv
dist=$cache/wheel

rm -rf "$dist"
"$python" -m build --no-isolation --wheel --outdir "$dist" . >"$cache/wheel-build.log" 2>&1 || {
    cat "$cache/wheel-build.log" >&2
    exit 1
}
wheel=$(echo "$dist"/*.whl)
if [ ! -x "$venv/bin/python" ]; then
    "$python" -m venv --clear "$venv"
fi
pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
$pip install "$wheel[testing]" pytest-timeout
$pip install --force-reinstall --no-deps "$wheel"

elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
mkdir "$elsewhere/tests"
cp "$here/pyproject.toml" "$elsewhere"
cp "$here/tests/conftest.py" "$elsewhere/tests"
cp -R "$here/tests/contract" "$elsewhere/tests"
cd "$elsewhere"
"$venv/bin/python" -c '
import sys, brokerwq
where = brokerwq.__file__
sys.exit(None if where.startswith(sys.prefix) else f"brokerwq comes from {where}, not from the wheel")
'
# What needs a client library or a server is not what a plain install has.
"$venv/bin/python" -m pytest -p no:cacheprovider tests/contract \
    --ignore=tests/contract/test_rabbitmq.py --ignore=tests/contract/test_sqs.py
