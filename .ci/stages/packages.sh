# shellcheck shell=bash
# What others build, elsewhere.

# Systems that nothing here runs on, and what only exists on some of them: the stand-ins for drivers.
other_targets=(aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-gnu)
only_unix='driver-sim*'

# wgpu is large, and its own: what is written over it is the same on all systems, and compiled for one of them.
with_wgpu=aarch64-apple-darwin
but_wgpu=(--exclude transship-wgpu --features transship/cuda,transship/dlpack,transship/hip,transship/ipc,transship/ndarray,transship/safetensors,transship/tracing)

# Each package that is to be published builds from its own files, with the oldest Rust that it promises.
stage_package() {
    step python3 .ci/packages "$target/packages" | tee "$scratch/packages"
    local oldest from_files
    oldest=$(tail -n 1 "$scratch/packages")
    from_files=(check --manifest-path "$target/packages/unpacked/Cargo.toml" --target-dir "$target" --workspace --all-features)
    if ensure_toolchain "$oldest"; then
        step cargo "+$oldest" "${from_files[@]}" --lib --bins --examples
    else
        step cargo "${from_files[@]}" --lib --bins --examples
        not_run "with Rust $oldest, which cannot be installed"
    fi
}

# The libraries compile for other systems, without a warning.
stage_targets() {
    ensure_component clippy cargo clippy --version
    local system packages missing=()
    for system in "${other_targets[@]}"; do
        if ! ensure_target "$system"; then
            missing+=("$system")
            continue
        fi
        packages=(--all-features)
        [[ $system == "$with_wgpu" ]] || packages=("${but_wgpu[@]}")
        [[ $system != *windows* ]] || packages+=(--exclude "$only_unix")
        # C and C++ code is built, which is never linked here: no compiler for that system is needed.
        TARGET_CC=true TARGET_CXX=true TARGET_AR=true step cargo clippy --locked --target "$system" --workspace "${packages[@]}" \
            --lib -- -D warnings
    done
    ((${#missing[@]} == 0)) || not_run "no standard library for ${missing[*]}"
}
