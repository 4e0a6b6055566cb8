# shellcheck shell=bash
# Crates over engines of others, below engines/: workspaces of their own, each with its lock file. Where an engine is not there, what
# loads it says so, and a stand-in takes its place in the tests.

# The NIXL that the tests are run with. It is fetched once, outside of the checkout.
nixl=nixl-cu12==1.5.1

stage_engines() {
    ensure_component rustfmt cargo fmt --version
    ensure_component clippy cargo clippy --version
    check_engine nccl --package={transship-nccl,fake-nccl}
    # As it is without a feature; then on a stand-in for two devices of CUDA.
    in_engine nccl test
    on_stand_in nccl --tests --examples
    engine_nixl
    weight_sync
}

# NIXL needs no device: two processes over loopback are tested with the library itself. Arenas on GPUs are tested on stand-ins for two
# devices of CUDA and for the library: UCX needs more of a driver.
engine_nixl() {
    local folder
    check_engine nixl --package={transship-nixl,fake-nixl}
    in_engine nixl test
    on_stand_in nixl --test on_gpus
    if folder=$(nixl_folder); then
        LD_LIBRARY_PATH=$folder TRANSSHIP_REQUIRE=nixl in_engine nixl test --test loading --test processes
    else
        not_run "without NIXL only what says so"
    fi
}

# All ways between processes in one program. The stand-in for NCCL has ranks of one process only.
weight_sync() {
    local folder
    check_engine weight_sync --package=weight-sync
    in_engine weight_sync test
    if folder=$(nixl_folder); then
        LD_LIBRARY_PATH=$folder in_engine weight_sync run -- --by nixl
        LD_LIBRARY_PATH=$folder in_engine weight_sync run -- --by nixl --tls tcp
    fi
}

# Where the library is. It is fetched where it is not.
nixl_folder() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/transship-nixl/$nixl
    if [[ ! -e $folder/complete ]]; then
        rm -rf "$folder"
        ensure_python_venv
        python3 -m venv "$scratch/nixl" && "$scratch/nixl/bin/python" -m pip install --quiet --no-cache-dir --no-deps --target "$folder" "$nixl" >&2 || return
        touch "$folder/complete"
    fi
    dirname "$(find "$folder" -name libnixl_capi.so)"
}

# What compiles nothing: of the workspace in a folder, with these packages.
check_engine() {
    step cargo fmt --manifest-path "engines/$1/Cargo.toml" "${@:2}" --check
    (cd "engines/$1" && step python3 ../../.ci/rust-versions && step python3 ../../.ci/licences)
}

# All of them build into one folder, which no other stage locks. What is built is linted and documented.
in_engine() {
    RUSTC_WORKSPACE_WRAPPER=$linting step cargo "$2" --locked --manifest-path "engines/$1/Cargo.toml" --target-dir "$target/engines" "${@:3}"
}

on_stand_in() {
    TRANSSHIP_REQUIRE=cuda-sim step "${simulated[@]}" env RUSTC_WORKSPACE_WRAPPER="$linting" cargo test --locked \
        --manifest-path "engines/$1/Cargo.toml" --target-dir "$target/engines" --features cuda "${@:2}"
}
