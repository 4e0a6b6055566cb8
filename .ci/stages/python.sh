# shellcheck shell=bash
# The package for Python.

# The PyTorch that the tests are run with, and what has its tensors. It is large, and installed once, outside of the checkout.
pytorch=(torch==2.11.0 tensordict==0.15.3)

# The wheel is tested in a virtual environment that has nothing else of its own.
stage_python() {
    local manifest=python/Cargo.toml fresh=$scratch/python/environment wheels=$scratch/python/wheels
    local -x CARGO_TARGET_DIR=$target/python
    ensure_python_venv
    ensure_component clippy cargo clippy --version
    step cargo fmt --manifest-path "$manifest" --check
    step python3 -m venv "$fresh"
    # The library of a module cannot be tested by itself; this file of it needs no other one.
    step rustc --edition 2024 -O --test python/src/kept_blocks.rs -o "$scratch/python/kept_blocks"
    step "$scratch/python/kept_blocks" --quiet
    local tools driver has_pytorch=yes
    tools=$(python_tools "${pytorch[@]}") || { has_pytorch=; tools=$(python_tools) || fail "neither PyTorch nor numpy can be installed"; }
    (
        export RUSTC_WORKSPACE_WRAPPER=$linting
        step "$tools/bin/maturin" build --locked --quiet --profile dev --interpreter "$fresh/bin/python" --manifest-path "$manifest" --out "$wheels"
    )
    # For CPython without the GIL, of which there is none here.
    PYO3_CONFIG_FILE=$PWD/.ci/cpython-3.14t step cargo clippy --locked --quiet --manifest-path "$manifest" \
        --target-dir "$CARGO_TARGET_DIR/without-gil" -- -D warnings
    step "$fresh/bin/python" -m pip install --quiet --no-index --no-deps "$wheels"/*.whl
    "$tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$fresh/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tools.pth"
    (
        unset CARGO_TARGET_DIR
        for driver in cuda hip; do
            TRANSSHIP_TEST_DRIVER=$driver step "${simulated[@]}" "$fresh/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_devices.py python/tests/test_stalled.py
        done
    )
    if [[ -z $has_pytorch ]]; then
        not_run "without PyTorch only python/tests/test_devices.py and test_stalled.py"
        return
    fi
    step "$fresh/bin/python" -m pytest -q -p no:cacheprovider python/tests
    (
        unset CARGO_TARGET_DIR
        TRANSSHIP_TEST_DRIVER=cuda step "${simulated[@]}" "$fresh/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_loader_ring.py -k to_a_device
    )
    TRANSSHIP_TORCH=slow step "$fresh/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_drop_in.py python/tests/test_dtypes.py
    step "$fresh/bin/python" python/demonstration.py
    step "$fresh/bin/python" -W ignore python/tests/soak.py --seconds 5 --device cpu
    step "$fresh/bin/python" -W ignore python/examples/train.py --transship --device cpu --steps 20 --workers 1 --size 32 --width 4
    step "$fresh/bin/python" -W error::RuntimeWarning python/examples/train.py --ring --device cpu --steps 20 --workers 1 --size 32 --width 4
    step "$fresh/bin/python" python/benches/loader_leaves.py --batches 5 --rounds 1 --workers 1 --size 32
}

# A virtual environment with what the tests need and these packages, made where there is none. It prints where that is.
python_tools() {
    local version folder
    version=$(python3 -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/transship-python/$version${1:+$(printf -- -%s "$@")}
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        python3 -m venv "$folder" >&2
        "$folder/bin/python" -m pip install --quiet --no-cache-dir numpy pytest 'maturin>=1.14,<2' "$@" >&2 || return
        touch "$folder/complete"
    fi
    printf '%s\n' "$folder"
}

ensure_python_venv() {
    python3 -c 'import ensurepip' 2>/dev/null || ensure_packages python3-venv
}
