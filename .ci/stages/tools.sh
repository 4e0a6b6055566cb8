# shellcheck shell=bash
# What stages need, installed when missing.

ensure_program() {
    local program=$1 packages=("${@:2}") sudo=()
    command -v "$program" >/dev/null && return
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

# Debian packages, where there is such a system.
ensure_packages() {
    local sudo=()
    dpkg --status "$@" >/dev/null 2>&1 && return
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$@"
}

ensure_component() {
    local component=$1
    "${@:2}" >/dev/null 2>&1 || rustup component add "$component"
}

# A toolchain of this version, and the standard library for another system, installed when missing.
ensure_toolchain() {
    rustc "+$1" --version >/dev/null 2>&1 || timeout 300 rustup toolchain install "$1" --profile minimal --no-self-update
}

ensure_target() {
    rustup target list --installed | grep -qx "$1" || timeout 300 rustup target add "$1"
}

# A nightly toolchain with these components, which are installed when missing; the toolchain itself is not.
ensure_nightly() {
    nightly_has "$@" || timeout 120 rustup component add "$@" --toolchain nightly || true
    nightly_has "$@"
}

nightly_has() {
    local installed component
    installed=$(rustup component list --toolchain nightly --installed 2>/dev/null) || return
    for component in "$@"; do
        grep -q "^$component" <<<"$installed" || return
    done
}

llvm_tools_are_installed() {
    [[ -n $(find "$(rustc --print sysroot)" -name 'llvm-profdata*' -print -quit) ]]
}

# Lints and documents what cargo builds, while it is compiled.
linting=$PWD/.ci/lint-and-document
