#!/usr/bin/env bash
# A replicated cluster of three nodes on this host at real work: sources, a compiler, grep, git, SQLite and Redis. The
# primary is killed with -9 in the middle of it; the programs go on, and everything that was confirmed is verified. Then the
# same with a single pool: its mount is killed and mounted again. Each figure stands beside the same work in a plain
# directory. Nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

tako=${TAKO_BIN:-$PWD/target/release/tako}
readonly bytes_needed=$((6 << 30))
readonly sources_mib_max=40 sources_count_max=2500
readonly rows_before=1000 keys_before=5000 no_end=100000000
readonly seconds_of_work=3

fail() {
    echo "demo.sh: $1" >&2
    exit 1
}

say() {
    printf '\n%s\n' "$1"
}

. scripts/place.sh

parent=$(choose_parent)
work=$(mktemp -d "$parent/tako-demo-XXXXXX")
pool=$work/demo.pool
cluster=demo-$$
clustered=$work/clustered
single=$work/single
# The directory in which the programs work.
mounted=$clustered
beside=$work/beside
jobs=()

clean_up() {
    trap - EXIT
    stop_jobs
    local directory
    for directory in "$clustered" "$single"; do
        "$tako" umount "$directory" 2>/dev/null || fusermount3 -uz "$directory" 2>/dev/null || true
    done
    "$tako" down --name "$cluster" --remove >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

stop_jobs() {
    local job
    for job in "${jobs[@]}"; do
        kill -9 "$job" 2>/dev/null || true
        wait "$job" 2>/dev/null || true
    done
    jobs=()
}

# ---- figures

seconds_of() {
    local start=$EPOCHREALTIME
    "$@" >"$work/output" 2>&1 || fail "$* failed: $(tail -n 3 "$work/output")"
    awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.6f\n", to - from }'
}

# A line of the table. Of what there was `count` of, the unit says how the time is shown: MB/s, µs for each, or s.
row() {
    awk -v what="$1" -v count="$2" -v unit="$3" -v here="$4" -v there="$5" '
        function figure(seconds) {
            if (unit == "MB/s") return sprintf("%8.0f MB/s", count / seconds / 1e6)
            if (unit == "µs") return sprintf("%8.1f µs  ", seconds / count * 1e6)
            return sprintf("%8.2f s   ", seconds)
        }
        BEGIN { printf "  %-34s%s  %s  %7.0f %%\n", what, figure(here), figure(there), there / here * 100 }'
}

# Does the same work in both directories and prints its row.
compare() {
    local what=$1 count=$2 unit=$3 there here
    shift 3
    there=$(seconds_of "$@" "$beside")
    here=$(seconds_of "$@" "$mounted")
    row "$what" "$count" "$unit" "$here" "$there"
}

# ---- the work, each in the directory that is the last argument

# This repository, and sources of its dependencies up to a limit.
collect_sources() {
    mkdir -p "$work/sources/tako"
    git ls-files -z --cached --others --exclude-standard 2>/dev/null |
        xargs -0 cp --parents -t "$work/sources/tako" 2>/dev/null ||
        cp -r crates docs scripts "$work/sources/tako"
    local crate
    for crate in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/*/; do
        [ "$(du -sm "$work/sources" | cut -f 1)" -lt "$sources_mib_max" ] || break
        [ "$(find "$work/sources" -type f | wc -l)" -lt "$sources_count_max" ] || break
        [ ! -d "$crate" ] || cp -r "$crate" "$work/sources/"
    done
}

copy_sources() {
    cp -r "$work/sources" "$1/"
}

search_sources() {
    grep -r unsafe "$1/sources" | wc -l >"$1/found"
}

write_program() {
    local file
    mkdir -p "$1/program"
    for file in {1..40}; do
        awk -v file="$file" 'BEGIN {
            for (n = 1; n <= 100; n++) {
                printf "static long f%d(long x) {\n    for (long i = 0; i < %d; i++)\n", n, n % 9 + 1
                printf "        x = (x * 31 + %d) %% 1000003;\n    return x;\n}\n\n", file * n
            }
            printf "long part%d(long x) {\n", file
            for (n = 1; n <= 100; n++) printf "    x = f%d(x);\n", n
            print "    return x;\n}"
        }' >"$1/program/part$file.c"
    done
    {
        printf '#include <stdio.h>\n\n'
        printf 'long part%d(long x);\n' {1..40}
        printf '\nint main(void) {\n    long x = 1;\n'
        printf '    x = part%d(x);\n' {1..40}
        printf '    printf("%%ld\\n", x);\n    return 0;\n}\n'
    } >"$1/program/main.c"
    {
        printf 'program: main.o'
        printf ' part%d.o' {1..40}
        printf '\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -O1 -c $<\n'
    } >"$1/program/Makefile"
}

build_program() {
    write_program "$1"
    make -s -j "$(nproc)" -C "$1/program"
    "$1/program/program" >"$1/program/result"
}

# git in the sources, with nothing of this user's or machine's settings: in_sources DIRECTORY ARGUMENTS
in_sources() {
    local directory=$1
    shift
    GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git -C "$directory/sources" \
        -c user.name=demo -c user.email=demo@localhost -c gc.auto=0 -c init.defaultBranch=main "$@"
}

commit_sources() {
    in_sources "$1" init -q
    in_sources "$1" add -A
    in_sources "$1" commit -q -m 0
}

# Commits with the numbers 1, 2, …; each number is printed once its commit is done.
commit_on() {
    local number
    for ((number = 1; ; number++)); do
        echo "$number" >"$1/sources/changed" && in_sources "$1" add -A &&
            in_sources "$1" commit -q -m "$number" && echo "$number" || return 0
    done
}

# Transactions for the rows from $1 to $2; each number is printed once its transaction is done.
transactions() {
    echo 'PRAGMA synchronous = FULL;'
    awk -v from="$1" -v to="$2" 'BEGIN {
        for (n = from; n <= to; n++) printf "INSERT INTO rows VALUES(%d, hex(zeroblob(50))); SELECT %d;\n", n, n
    }'
}

insert_rows() {
    sqlite3 "$1/database" 'PRAGMA journal_mode = WAL; CREATE TABLE rows(number INTEGER PRIMARY KEY, payload TEXT);'
    transactions 1 "$rows_before" | sqlite3 -bail "$1/database"
}

# Redis commands for the keys from $2 to $3: redis_commands SET 1 100
redis_commands() {
    awk -v command="$1" -v from="$2" -v to="$3" 'BEGIN {
        for (n = from; n <= to; n++) print command, "key:" n, (command == "SET" ? "value-of-" n : "")
    }'
}

ask_redis() {
    redis-cli -s "$work/redis.socket" "$@"
}

# Starts Redis in the directory, with a log that is synchronised for each command.
start_redis() {
    mkdir -p "$1/redis"
    redis-server --port 0 --unixsocket "$work/redis.socket" --dir "$1/redis" --save '' --appendonly yes \
        --appendfsync always >"$work/redis.log" 2>&1 &
    jobs+=($!)
    local tries
    for tries in {1..200}; do
        [ "$(ask_redis ping 2>/dev/null)" != PONG ] || return 0
        sleep 0.05
    done
    fail "redis-server did not start in $tries tries: $(tail -n 3 "$work/redis.log")"
}

set_keys() {
    redis_commands SET 1 "$keys_before" | ask_redis
}

# ---- the demonstration

work_on_both() {
    local bytes count there here
    bytes=$(du -sb "$work/sources" | cut -f 1)
    count=$(find "$work/sources" -type f | wc -l)
    say "$(printf '%-38s%-15s%-17s%s' 'Work through the mount' Tako "$(stat -f -c %T "$work")" speed)"
    compare "copy $count files, $((bytes / 1000000)) MB" "$bytes" MB/s copy_sources
    compare "grep -r" "$bytes" MB/s search_sources
    compare "git add, git commit" 1 s commit_sources
    compare "make: gcc -O1, 41 files" 1 s build_program
    compare "SQLite transaction, synchronous" "$rows_before" µs insert_rows
    start_redis "$beside"
    there=$(seconds_of set_keys)
    stop_jobs
    start_redis "$mounted"
    here=$(seconds_of set_keys)
    row "Redis SET, synchronous" "$keys_before" µs "$here" "$there"
    cmp "$beside/found" "$mounted/found"
    cmp "$beside/program/result" "$mounted/program/result"
}

# Everything that the programs will not change any more.
list_sums() {
    (cd "$1" && find sources program found -path sources/.git -prune -o -type f -print0 | xargs -0 sha256sum)
}

# Redis is running already. What each program was told was done is noted outside of the mount.
start_work() {
    commit_on "$mounted" >"$work/commits" 2>/dev/null &
    jobs+=($!)
    sqlite3 -bail "$mounted/database" < <(transactions $((rows_before + 1)) "$no_end") >"$work/rows" 2>/dev/null &
    jobs+=($!)
    redis-cli -s "$work/redis.socket" < <(redis_commands SET $((keys_before + 1)) "$no_end") >"$work/keys" 2>/dev/null &
    jobs+=($!)
}

# Prints a line of the verification; $2 is what was acknowledged, $3 what is there.
verified() {
    printf '  %-34s%10s acknowledged %10s found\n' "$1" "$2" "$3"
    [ "$3" -ge "$2" ] || fail "$1: something that was acknowledged is missing"
}

verify() {
    local lock count
    (cd "$mounted" && sha256sum --quiet --check "$work/sums") || fail "a file is not what it was"
    diff -r -x .git -x changed "$work/sources" "$mounted/sources" || fail "a file is not what was copied"
    printf '  %-34s%10s files, as they were\n' "sha256sum --check" "$(wc -l <"$work/sums")"

    for lock in index HEAD refs/heads/main; do
        rm -f "$mounted/sources/.git/$lock.lock"
    done
    in_sources "$mounted" fsck --full --strict >"$work/output" 2>&1 || fail "git fsck: $(tail -n 3 "$work/output")"
    verified "git fsck; commits" "$(wc -l <"$work/commits")" "$(($(in_sources "$mounted" rev-list --count HEAD) - 1))"

    [ "$(sqlite3 "$mounted/database" 'PRAGMA integrity_check;')" = ok ] || fail "SQLite: the database is damaged"
    count=$(sqlite3 "$mounted/database" 'SELECT count(*) FROM rows WHERE payload = hex(zeroblob(50));')
    verified "SQLite integrity_check; rows" "$(tail -n 1 "$work/rows")" "$count"

    start_redis "$mounted"
    count=$(ask_redis dbsize)
    verified "Redis log loads; keys" "$((keys_before + $(grep -c OK "$work/keys")))" "$count"
    cmp <(redis_commands GET 1 "$count" | ask_redis) <(seq -f 'value-of-%.0f' "$count") || fail "Redis: a value is wrong"
    stop_jobs
}

# Of the node with this role: its name and process.
node_with_role() {
    "$tako" status --name "$cluster" --json | python3 -c '
import json, sys
for node in json.load(sys.stdin)["nodes"]:
    if node["role"] == sys.argv[1]:
        print(node["name"], node["pid"])
        break' "$1"
}

# The nanoseconds at which each of many small synchronous writes through the mount was done.
tick_on() {
    while dd if=/dev/zero of="$mounted/tick" bs=64 count=1 conv=fsync status=none; do
        date +%s%N
    done
}

# The primary is killed, and the programs go on.
work_and_lose_the_primary() {
    local name process programs
    start_work
    programs=("${jobs[@]}")
    tick_on >"$work/ticks" 2>"$work/output" &
    jobs+=($!)
    sleep "$seconds_of_work"
    read -r name process < <(node_with_role primary) || fail "no node is the primary"
    kill -9 "$process"
    printf '  killed %s, the primary\n' "$name"
    sleep $((2 * seconds_of_work))
    for process in "${programs[@]}"; do
        kill -0 "$process" 2>/dev/null || fail "a program ended when the primary was killed"
    done
    stop_jobs
    read -r name process < <(node_with_role primary) || fail "no node took over"
    awk -v name="$name" '
        NR > 1 && $1 - last > most { most = $1 - last }
        { last = $1 }
        END { printf "  %s took over; the longest pause of a program was %.1f s\n", name, most / 1e9 }' "$work/ticks"
}

# The process that serves the mount is killed, and the pool is mounted again.
work_and_lose_the_mount() {
    local server
    start_work
    sleep "$seconds_of_work"
    server=$(pgrep -f -- "mount --detached -- $pool ") || fail "no process serves the mount any more"
    kill -9 "$server"
    # The dead process holds the pool until the last of its threads has ended.
    flock --shared "$pool" true
    stop_jobs
    local started_mount=$EPOCHREALTIME
    "$tako" mount "$pool" "$mounted"
    awk -v from="$started_mount" -v to="$EPOCHREALTIME" \
        'BEGIN { printf "  mounted again, recovered, in %.0f ms\n", (to - from) * 1000 }'
}

[ -x "$tako" ] || fail "$tako is missing; run \`make build\` first"
started=$SECONDS
mkdir "$clustered" "$single" "$beside"
collect_sources

say "A cluster of three nodes on this host (tako up)"
"$tako" up --name "$cluster" --nodes 3 --size 1G --directory "$work/cluster" --mount "$clustered"
work_on_both
list_sums "$mounted" >"$work/sums"
say "git, SQLite and Redis go on; after $seconds_of_work s the primary is killed with -9"
work_and_lose_the_primary
say "What is there"
verify
"$tako" down --name "$cluster" --remove

say "A single pool of 1 GiB (tako mount)"
mounted=$single
rm -rf "$beside"
mkdir "$beside"
"$tako" mkfs "$pool" --size 1G
"$tako" mount "$pool" "$mounted"
work_on_both
list_sums "$mounted" >"$work/sums"
say "git, SQLite and Redis go on; after $seconds_of_work s the mount is killed with -9"
work_and_lose_the_mount
say "What is there"
verify
"$tako" umount "$mounted"
"$tako" check "$pool" | sed 's/^/  tako check: clean, /'
say "Done in $((SECONDS - started)) s; nothing is left behind."
