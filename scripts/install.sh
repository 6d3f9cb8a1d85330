#!/bin/sh
# Create the virtual environment $2 with the interpreter $1 and install minidynamo with its pinned dependencies: those of
# constraints.txt, except where the file $3, if there is one, pins others.
#
# torch goes in first and alone. Its plain wheel is a CUDA build on Linux, so on a machine without an NVIDIA GPU the
# CPU build is looked for: first where pip is already configured to look, then at torch's index of CPU wheels.
set -eu
python=$1
venv=$2
own=${3:-}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
constraints=$venv/constraints.txt
awk -F '[ =<>;]' '/^[A-Za-z]/ && !pinned[$1]++' $own constraints.txt >"$constraints"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

torch=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$constraints")
if ! "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('torch').split('+')[0] == '$torch'" 2>/dev/null; then
    if nvidia-smi >/dev/null 2>&1; then
        pip install --constraint "$constraints" "torch==$torch"
    else
        cpu="torch==$torch+cpu"
        pip install --quiet --constraint "$constraints" "$cpu" 2>/dev/null ||
            pip install --quiet --retries 0 --timeout 15 --constraint "$constraints" \
                --extra-index-url https://download.pytorch.org/whl/cpu "$cpu" 2>/dev/null ||
            { echo "install: no CPU build of torch $torch for this interpreter is within reach; taking the plain one" &&
                pip install --constraint "$constraints" "torch==$torch"; }
    fi
fi
pip install --quiet --constraint "$constraints" hatchling editables
pip install --quiet --constraint "$constraints" --no-build-isolation --editable '.[dev,models]'
