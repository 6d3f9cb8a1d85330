#!/bin/sh
# Print the path of a working interpreter called $1 (for example python3.12), or fail.
# A name on PATH may be a version manager's shim that does not run, so each candidate is tried.
name=$1
version=${name#python}
for candidate in "$name" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
    if found=$("$candidate" -c 'import sys; print(sys.executable, end="")' 2>/dev/null) && [ -n "$found" ]; then
        printf '%s\n' "$found"
        exit 0
    fi
done
echo "no working interpreter called $name on PATH or under pyenv; install one or pass PYTHON=/path/to/python" >&2
exit 1
