# shellcheck shell=bash
# Tools that watch the code while it runs: sanitizers, an interpreter, a model checker.

# The tests of transship-core that Miri runs, beside those inside of the crate: those that reach the unsafe code and end
# within minutes there.
miri_tests=(tensor tree value in_flight fill dlpack)
miri_proptest_cases=4
miri_seconds=1800

# The tests of transship-core that ThreadSanitizer watches, beside those inside of the crate: those with threads, but for some
# that copy too much or are held to a time, since everything takes many times as long there. And how long the soak is, in
# steps of each thread, and on which devices.
tsan_tests=(budget cancel errors executors fan_out faults in_flight into into_in_flight lanes never_blocks ordering regressions
    round_trip steady_state streams_of_threads)
tsan_skips=(many_copies_of_many_threads_stay whatever_sizes_are_copied_in_turn a_copy_that_ends_while_it_is_polled
    while_a_device_stands_still_every_call)
tsan_soak_steps=20
tsan_soak_devices=(host late)

# How long each fuzz target runs: executions, seconds at most.
fuzz_runs=20000
fuzz_seconds=10

# Short runs from the kept corpus. Building took four times as long as running, where all was optimised.
stage_fuzz() {
    local -x CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=2
    step cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
    step tests/fuzz/run "$fuzz_runs" "$fuzz_seconds"
}

stage_miri() {
    if ! ensure_nightly miri rust-src; then
        not_run "no nightly toolchain with miri and rust-src"
        return
    fi
    # The reactor's thread outlives `main`, and memory that may still be in flight is leaked on purpose. Printing where a thread has
    # panicked, as some tests want it to, takes minutes.
    RUST_BACKTRACE=0 MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks" PROPTEST_CASES=$miri_proptest_cases \
        step timeout "$miri_seconds" cargo +nightly miri test --locked -p transship-core --features dlpack --lib "${miri_tests[@]/#/--test=}"
}

# Threads in orders that a model checker chooses. A build of its own: all locks are those of the model.
stage_shuttle() {
    local -x RUSTFLAGS='--cfg shuttle' CARGO_TARGET_DIR="$target/shuttle" CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTC_WORKSPACE_WRAPPER=$linting
    step cargo test --locked -p transship-core --features shuttle --test shuttle
}

# Data races that the schedules of this run show.
stage_tsan() {
    if ! ensure_nightly rust-src; then
        not_run "no nightly toolchain with rust-src"
        return
    fi
    local host device
    host=$(rustc +nightly --version --verbose | sed -n 's/^host: //p')
    # The standard library is built with it as well. A test asks for more memory than there is, and printing where a thread has
    # panicked, as some tests want it to, takes minutes there.
    local -x RUSTFLAGS="-Zsanitizer=thread --cfg instrumented" TSAN_OPTIONS=allocator_may_return_null=1 RUST_BACKTRACE=0
    # Both packages each time, or crates that they share would be built twice, with features of one and of both; and `test` each time, which
    # cargo leaves out for a test that needs none, and then builds all again. In a folder of
    # its own, which no other stage locks.
    local test=(cargo +nightly test --locked -Zbuild-std=std,test --target "$host" --target-dir "$target/tsan" -p transship-core -p transship)
    step "${test[@]}" --lib "${tsan_tests[@]/#/--test=}" -- "${tsan_skips[@]/#/--skip=}"
    for device in "${tsan_soak_devices[@]}"; do
        step "${test[@]}" --test soak -- "$device" --exact --steps "$tsan_soak_steps"
    done
}
