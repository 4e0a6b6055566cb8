# shellcheck shell=bash
# Adaptors to other crates, below interop/: workspaces of their own, each with its lock file. Without the features that need a GPU's
# compiler: those are built where there is one.

stage_interop() {
    ensure_component rustfmt cargo fmt --version
    ensure_component clippy cargo clippy --version
    ensure_packages libvulkan1 mesa-vulkan-drivers
    local -x RUSTC_WORKSPACE_WRAPPER=$linting
    local manifest name
    for manifest in interop/*/Cargo.toml; do
        name=$(basename "$(dirname "$manifest")")
        step cargo fmt --manifest-path "$manifest" --check
        (cd "interop/$name" && step python3 ../../.ci/rust-versions)
        # What burn brings along, what it fetches data with included, is of licences that nothing else here is of: who has burn has it.
        [[ $name == burn ]] || (cd "interop/$name" && step python3 ../../.ci/licences)
        "test_$name"
    done
}

test_candle() {
    in_adaptor candle test
    in_adaptor candle run --example mlp
}

# As it is with burn's own default features.
test_burn() {
    TRANSSHIP_REQUIRE=wgpu in_adaptor burn test --features fusion
    in_adaptor burn run --features fusion --example batcher
}

# A session that is given memory in another way than ours waits for itself for ever.
test_ort() {
    local -x ORT_DYLIB_PATH
    if ! ORT_DYLIB_PATH=$(interop/ort/onnxruntime "$target/interop/onnxruntime"); then
        not_run "the tests of interop/ort: ONNX Runtime cannot be fetched"
        return
    fi
    in_adaptor ort test --no-run
    step timeout 300 cargo test --locked --manifest-path interop/ort/Cargo.toml --target-dir "$target/interop"
    in_adaptor ort run --example ort_binding
    if ORT_DYLIB_PATH=/nowhere in_adaptor ort run --example ort_binding; then
        fail "the example has run without ONNX Runtime"
    fi
}

# All of them build into one folder, which no other stage locks.
in_adaptor() {
    step cargo "$2" --locked --manifest-path "interop/$1/Cargo.toml" --target-dir "$target/interop" "${@:3}"
}
