#!/usr/bin/env bash
# Fuzzes every parser of media and messages, each for FUZZ_SECONDS (60 unless told), and stops at the first failure.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "fuzz.sh: $1" >&2
    exit 1
}

cargo fuzz --version >/dev/null 2>&1 ||
    fail "cargo-fuzz is missing; run \`cargo install --locked cargo-fuzz\` and try again"

targets=$(cargo fuzz list)
for target in $targets; do
    echo "fuzzing $target"
    # What it finds interesting goes to the first directory; the fixed corpus, the second, only grows by hand.
    found="target/fuzz/$target"
    mkdir -p "$found"
    # No parser has unsafe code: without a sanitizer there are ten times as many runs, and no nightly toolchain is needed.
    cargo fuzz run --sanitizer none "$target" "$found" "fuzz/corpus/$target" -- \
        -max_total_time="${FUZZ_SECONDS:-60}" -timeout=10 -max_len=4096
done
