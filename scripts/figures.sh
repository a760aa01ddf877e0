#!/usr/bin/env bash
# Measures every row of docs/performance/tables.md and puts the tables into it, about half an hour on a quiet machine.
# Peers are measured where `scripts/peers.sh up` has mounted them. The text around the tables, docs/PERFORMANCE.md and the
# README are edited by hand afterwards.
#
# figures.sh [DIRECTORY]    keeps the programs' output there; target/figures if none is given
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-target/figures}
tako=${TAKO_BIN:-$PWD/target/release/tako}
mkdir -p "$runs"
# An older program would be measured without a word.
[ -n "${TAKO_BIN:-}" ] || cargo build --release --bin tako
"$tako" bench --bars | tee "$runs/bench"
"$tako" bench fabric --tune --bars | tee "$runs/tune"
BARS=1 scripts/programs.sh | tee "$runs/programs"
scripts/performance.py "$runs/bench" "$runs/tune" "$runs/programs"
git diff --stat docs/performance docs/plots
