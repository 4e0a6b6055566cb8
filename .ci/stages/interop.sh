# shellcheck shell=bash
# Adaptors to other crates, below interop/: workspaces of their own, each with its lock file. Without the features that need a GPU's
# compiler: those are built where there is one.

stage_interop() {
    ensure_component rustfmt cargo fmt --version
    ensure_component clippy cargo clippy --version
    local manifest
    for manifest in interop/*/Cargo.toml; do
        check_adaptor "${manifest%/Cargo.toml}"
    done
    in_adaptor candle run --example mlp
}

check_adaptor() {
    local adaptor=${1#interop/}
    step cargo fmt --manifest-path "$1/Cargo.toml" --check
    in_adaptor "$adaptor" clippy --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" in_adaptor "$adaptor" doc --no-deps
    in_adaptor "$adaptor" test
    (cd "$1" && step python3 ../../.ci/licences && step python3 ../../.ci/rust-versions)
}

# All of them build into one folder, which no other stage locks.
in_adaptor() {
    step cargo "$2" --locked --manifest-path "interop/$1/Cargo.toml" --target-dir "$target/interop" "${@:3}"
}
