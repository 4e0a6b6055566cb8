# shellcheck shell=bash
# What of backends is about time, size or luck, in a build without counters. The stage `test` has their cases.

# Orders that stand-ins for drivers try. What HIP's backend shares with CUDA's has been through all of them by then.
seeds=120
hip_seeds=50

# How long the soak of a driver is, in steps of each thread.
soak_steps=600

# On Mesa's software adapter: Vulkan alone, and with GL beside it, which makes two devices that cannot wait for each other.
stage_wgpu() {
    ensure_packages libvulkan1 mesa-vulkan-drivers libegl1 libgl1-mesa-dri
    build_plain
    local required=(env TRANSSHIP_REQUIRE=wgpu)
    local both=(env TRANSSHIP_REQUIRE=wgpu,wgpu:1 WGPU_BACKEND=vulkan,gl)
    step "${both[@]}" "$(plain tests/conformance/main.rs)" wgpu::
    # On a processor the kernel that gathers does not pay: it runs where it is told to.
    step "${required[@]}" TRANSSHIP_WGPU_GATHER=always "$(plain tests/conformance/main.rs)" wgpu::
    step "${required[@]}" "$(plain tests/soak/main.rs)" wgpu --steps "$soak_steps"
    step "${both[@]}" TRANSSHIP_WGPU_GATHER=always "$(plain tests/soak/main.rs)" wgpu --steps "$soak_steps"
    step "$(plain examples/wgpu_compute.rs)"
    step "$(plain examples/detection_batch.rs)" wgpu:0
    step "$(plain benches/download_phases.rs)" 0 50
    # CUDA, on its stand-in, and wgpu in one program.
    step "${simulated[@]}" "$(plain examples/between_devices.rs)" cuda:0 wgpu:0
    step "$(plain benches/transship_bench/main.rs)" --quick --device wgpu:0 --only headline --only 1GiB
}

# The CUDA backend on a stand-in for its driver, which looks for breaches of the driver's rules.
stage_cuda-sim() {
    check_raw_calls
    build_plain
    step "${simulated[@]}" "$(plain benches/transship_bench/main.rs)" \
        --quick --device cuda:0 --device cuda:1 --only headline --only devices --only 1GiB
    step "${simulated[@]}" "$(plain benches/load_files.rs)" --device cuda:0 --folder "$scratch" --gigabytes 0.1 --rounds 1
    step "${simulated[@]}" "$(plain examples/training_loop.rs)" cuda:0 "$scratch/timeline.json"
    step "${simulated[@]}" "$(plain examples/loader_processes.rs)"
    step python3 docs/draw_timeline.py "$scratch/timeline.json" >"$scratch/timeline.svg"
    grep -q 'cuda:0, stream' "$scratch/timeline.svg" || fail "the timeline shows no stream"
    soak_and_seeds cuda "$seeds"
}

# The HIP backend on the same, through a library that forwards HIP to CUDA; and on AMD's own runtime, without a device.
stage_hip-sim() {
    build_plain
    soak_and_seeds hip "$hip_seeds"
    ensure_packages libamdhip64-5
    step "$(plain backend-hip/tests/runtimes.rs)" --nocapture | tee "$scratch/runtimes"
    grep -q "answer: the HIP runtime is there and finds no device" "$scratch/runtimes" || fail "AMD's runtime did not answer"
}

# The stand-in for libcuda answers raw calls as a driver did, but for the differences that are known.
check_raw_calls() {
    local raw=tests/driver-sim/raw
    cargo run --locked -p driver-sim -- cargo run --locked -p driver-sim --example raw_calls >"$scratch/raw_calls"
    diff "$raw/h200.txt" "$scratch/raw_calls" >"$scratch/differences" || (($? == 1))
    step diff "$raw/differences.txt" "$scratch/differences" || fail "raw calls come to something else: see $raw"
}

# A long run, what is about time, and the cases about order and lifetime with many orders of what streams leave open.
soak_and_seeds() {
    local driver=$1 orders=$2 subject
    local -x TRANSSHIP_REQUIRE="$driver-sim,$driver-sim:1"
    step "${simulated[@]}" "$(plain tests/soak/main.rs)" "$driver" --steps "$soak_steps"
    step "${simulated[@]}" "$(plain "backend-$driver/tests/device/main.rs")" nothing_waits_for_a_stalled_stream
    for subject in streams lifetimes; do
        # An API that this system does not have: to ask wgpu for its adapters takes longer than the cases.
        WGPU_BACKEND=dx12 step "${simulated[@]}" --seeds "$orders" "$(plain tests/conformance/main.rs)" --quiet "$driver::$subject"
    done
}
