# shellcheck shell=bash
# The tests, each once as a newcomer runs it, and once with all features on all stand-ins.

# One build serves whatever runs with these; programs are run by themselves, since cargo builds another one for some of them.
everything=(--locked --workspace --all-features)
# It finds stand-ins where drivers are looked for.
simulated=(cargo run --locked --quiet -p driver-sim --)

# All that `faults` has for each driver, what takes longest first.
faults=({cuda,hip}::{ToBoth::,Opened::,ColumnsBetween::,Between::,InPlace::,Up::,Down::,CastUp::,CastDown::,lost::,questions} cuda::{registered,recorded})

# The only place where the commands of the README run. What its tests reach counts for the stage `coverage`.
stage_newcomer() {
    [[ -z $(git status --porcelain) ]] || echo "note: changes that are not committed are not in the clone"
    step git clone --quiet . "$scratch/newcomer"
    local commands command compiler=$target/newcomer/rustc
    mkdir -p "${compiler%/*}"
    # Cargo tells crates of the clone and those of the tree apart by this program; coverage does not, by the names of their files.
    printf '#!/bin/sh\nexec %q "$@" --remap-path-prefix=%q=%q\n' "$PWD/.ci/instrumented" "$scratch/newcomer" "$PWD" >"$compiler"
    chmod +x "$compiler"
    commands=$(cd "$scratch/newcomer" && readme_commands)
    (($(wc -l <<<"$commands") == 2)) || fail "README.md promises two commands, but gives:"$'\n'"$commands"
    begin_to_count newcomer
    (
        local -x CARGO_TARGET_DIR=$target RUSTC_WORKSPACE_WRAPPER=$compiler
        cd "$scratch/newcomer"
        while IFS= read -r command; do
            step bash -euo pipefail -c "$command" </dev/null
        done <<<"$commands"
        bash -euo pipefail -c "${commands##*$'\n'} --no-run --message-format=json" 2>/dev/null | python3 .ci/programs >"$counted/programs"
    )
}

# What there is more, with all features: on stand-ins for the drivers of CUDA and HIP and on Mesa's software adapter.
stage_test() {
    test_and_count
    step cargo test "${everything[@]}" --doc
    build_plain
    step "$(plain benches/transship_bench/main.rs)" --quick --device host
}

test_and_count() {
    ensure_packages libvulkan1 mesa-vulkan-drivers
    begin_to_count test
    count_lines
}

count_lines() (
    export RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/instrumented
    local programs=$counted/programs library more
    more=$(python3 .ci/tests-of-features)
    # shellcheck disable=SC2086 # the flags are words
    build "$programs" test --no-run --lib --bins $more
    for library in {core,backend-cuda,backend-hip,backend-wgpu,safetensors,ipc,tests/driver-sim/engine}/src/lib.rs; do
        step "$(program "$programs" "$library")"
    done
    # Without a driver the cases of its backend are listed as ignored.
    step "$(program "$programs" tests/conformance/main.rs)" cuda::
    step "$(program "$programs" tests/conformance/main.rs)" hip::
    step "$(program "$programs" tests/faults/main.rs)"
    local -x TRANSSHIP_REQUIRE=cuda-sim,cuda-sim:1,hip-sim,hip-sim:1,wgpu
    # But for the one statement that is about time: counting is slow. `cuda-sim` and `hip-sim` have it.
    # shellcheck disable=SC2086
    step "${simulated[@]}" cargo test "${everything[@]}" --bins $more -- \
        --skip nothing_waits_for_a_stalled_stream "${faults[@]/#/--skip=}"
    try_faults "$(program "$programs" tests/faults/main.rs)"
)

# From here on programs that count the lines that have run write that into a folder of this name, with nothing else in it.
begin_to_count() {
    counted=$target/coverage/$1
    rm -rf "$counted"
    mkdir -p "$counted"
    export LLVM_PROFILE_FILE=$counted/%p-%2m.profraw
    touch "$scratch/counted-$1"
}

# In a process for each: what the faults of all leave behind on purpose is more than a process may have mapped, and slows those down
# that come later. Two at once: each waits half of its time.
try_faults() {
    local outputs=$scratch/faults status=0
    mkdir "$outputs"
    printf '%s\n' "${faults[@]}" |
        xargs -P 2 -I '{}' bash -c '"${@:2}" >"$1" 2>&1' - "$outputs/{}" "${simulated[@]}" "$1" '{}' || status=$?
    cat "$outputs"/*
    ! grep -l '^test result: .* 0 passed' "$outputs"/* || fail "no case of faults has these names"
    return "$status"
}

# How many lines of the libraries have run in `newcomer` and `test`.
stage_coverage() {
    ensure_component llvm-tools llvm_tools_are_installed || { not_run "no component llvm-tools"; return; }
    [[ -e $scratch/counted-newcomer ]] || stage_newcomer
    [[ -e $scratch/counted-test ]] || test_and_count
    local tools programs
    tools=$(dirname "$(find "$(rustc --print sysroot)" -name 'llvm-profdata*' -print -quit)")
    mapfile -t programs < <(cut -f 2 "$target"/coverage/{newcomer,test}/programs)
    find "$target/coverage" -name '*.profraw' >"$target/coverage/profiles"
    # A process that a fault has ended may have written half of its own.
    step "$tools/llvm-profdata" merge --sparse --failure-mode=all --input-files="$target/coverage/profiles" \
        --output="$target/coverage/merged"
    "$tools/llvm-cov" export --format=lcov --instr-profile="$target/coverage/merged" "${programs[@]/#/--object=}" \
        >"$target/coverage/lcov.info"
    step python3 .ci/coverage "$target/coverage/lcov.info" "$target/coverage/unreached.txt"
}

# A program of the build without counters, by the file that it begins with.
plain() {
    program "$target/plain-programs" "$1"
}

build_plain() {
    rm -f "$target/plain-programs"
    build "$target/plain-programs" test --no-run --test conformance --test soak --test device --test runtimes
    build "$target/plain-programs" build --examples
}

# Builds what cargo is asked for, and adds the programs to a list.
build() {
    step cargo "${@:2}" "${everything[@]}"
    cargo "${@:2}" "${everything[@]}" --message-format=json 2>/dev/null | python3 .ci/programs >>"$1"
}

program() {
    grep -P "^\Q$2\E\t" "$1" | cut -f 2 || fail "cargo has built nothing from $2"
}

stage_mutants() {
    # Where there is no wgpu device its tests are ignored, which does not count as passed.
    ensure_packages libvulkan1 mesa-vulkan-drivers
    step python3 .ci/mutants
}

# The commands in the shell blocks below the heading "## Two commands" of ./README.md, one on a line.
readme_commands() {
    awk '
        /^## /                   { here = ($0 == "## Two commands"); next }
        here && /^```/           { inside = !inside && /^```(sh|bash|shell|console)?$/; next }
        here && inside && /^[^#]/
    ' README.md
}
