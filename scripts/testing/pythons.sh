# Functions for scripts that use several Pythons and the oldest libraries: `source` it.

# Prints the path of a Python such as 3.13: on the PATH, or else among pyenv's.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" \
            2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# From "keras>=3.11" to "keras==3.11": the libraries that users import, not the tools of the tests.
# tests/test_supply.py checks that none is missing.
oldest() {
    sed -n -e '/^install_requires/,/^$/s/^ *\([a-z0-9_-]*\)>=\(.*\)/\1==\2/p' \
        -e '/^tfds =/,/^tensorboard =/s/^\( *\|[a-z0-9-]* = \)\([a-z0-9_-]*\)>=\(.*\)/\2==\3/p' setup.cfg
}

# Prints the constraints for `uv pip install`: `oldest`, and what these need.
oldest_constraints() {
    oldest
    # Newer ones need protobuf 6, which they do not ask for, and TensorFlow 2.18 has 5.
    echo "tensorflow-metadata<1.21"
}
