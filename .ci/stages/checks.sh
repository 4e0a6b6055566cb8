# shellcheck shell=bash
# What can be said without running a test.

# No crate of this kind may be below transship-core.
gpu_crates='^(cudarc|cuda-|cust|hip-|wgpu|ash|metal|objc2-metal|naga)'

stage_lint() {
    ensure_component rustfmt cargo fmt --version
    ensure_component clippy cargo clippy --version
    step cargo fmt --all --check
    check_nothing_is_half_merged

    local sets flags
    sets=$(python3 .ci/feature-sets)
    while IFS= read -r flags; do
        # shellcheck disable=SC2086 # the flags are words
        step cargo clippy --locked $flags -- -D warnings
    done <<<"$sets"

    RUSTDOCFLAGS="-D warnings" step cargo doc --locked --workspace --no-deps --all-features
    step python3 .ci/licences
    step python3 .ci/rust-versions
    step python3 .ci/mutants --check
    step python3 .ci/layers
    check_ptx
    check_advisories
    check_core_is_free_of_gpu_crates
}

# What git leaves behind where two changes meet shows in no compiler when it is in a document.
check_nothing_is_half_merged() {
    if git grep -nE '^(<{7}|>{7}) '; then
        fail "these lines are git's, of a merge that was not ended"
    fi
}

# Each change of what programs can use shows in a diff of docs/api.
stage_api() {
    local status=0
    step bash .ci/api | tee "$scratch/api" || status=$?
    if ((status == 3)); then
        not_run "$(tail -n 1 "$scratch/api")"
    elif ((status != 0)); then
        return "$status"
    fi
}

# The host path has not become more expensive, counted in instructions: time says nothing on a busy machine.
stage_bench-guard() {
    ensure_packages valgrind
    step cargo build --locked --release -p instruction-counts
    step python3 .ci/bench-guard "${CARGO_TARGET_DIR:-target}/release/instruction-counts" "$scratch"
}

# What the driver of CUDA is given comes from the text that all others compile. Another version of clang gives another one.
check_ptx() {
    if ensure_packages clang-14; then
        step bash .ci/ptx check
    else
        echo "PTX: NOT CHECKED (no clang 14)"
    fi
}

check_advisories() {
    if ! cargo deny --version >/dev/null 2>&1; then
        echo "advisories: NOT CHECKED (no cargo-deny)"
    elif ! cargo deny --all-features fetch db; then
        echo "advisories: NOT CHECKED (the database cannot be fetched)"
    else
        step cargo deny --all-features --locked check advisories
    fi
}

check_core_is_free_of_gpu_crates() {
    local crates
    crates=$(cargo tree --locked -p transship-core -e normal,build --all-features --target all --prefix none --format '{p}')
    if grep -E "$gpu_crates" <<<"$crates"; then
        fail "transship-core depends on a GPU crate"
    fi
    echo "transship-core: no GPU crate among $(sort -u <<<"$crates" | wc -l) packages"
}
