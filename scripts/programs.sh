#!/usr/bin/env bash
# Programs at work in a mounted pool, each beside the same work on tmpfs, in turns: unpacking sources, git status, a search
# through all of them, removing them; Redis with a log that is synced at each change. A mount of a cluster of three members
# on this host does the same beside the pool, and Redis also works in a mount inside the primary's node of another one. Where GlusterFS and MooseFS are mounted (scripts/peers.sh), beside them too,
# as often and in turns. BARS=1 shows the project's own bars. Nothing is left behind.
#
# What is cached: all that was unpacked is in the page cache of each file system, and git's index is fresh.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8 GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null

tako=${TAKO_BIN:-$PWD/target/release/tako}
readonly rounds=${ROUNDS:-5}
readonly files_max=3000 mib_max=60
readonly redis_port=${REDIS_PORT:-7391}
# Name and directory of each peer.
readonly peers=("GlusterFS /mnt/gluster" "MooseFS /mnt/mfs")

fail() {
    echo "programs.sh: $1" >&2
    exit 1
}

work=$(mktemp -d /dev/shm/tako-programs-XXXXXX)
# Clusters of others on this host stay as they are.
export TAKO_STATE=$work/state
redis=""

clean_up() {
    trap - EXIT
    [ -z "$redis" ] || kill -9 "$redis" 2>/dev/null || true
    "$tako" down --name programs --remove >/dev/null 2>&1 || fusermount3 -uz "$work/cluster" 2>/dev/null || true
    "$tako" down --name inside --remove >/dev/null 2>&1 || fusermount3 -uz "$work/inside" 2>/dev/null || true
    "$tako" umount "$work/mounted" 2>/dev/null || fusermount3 -uz "$work/mounted" 2>/dev/null || true
    local peer
    for peer in "${peers[@]}"; do
        ! mountpoint -q "${peer#* }" || rm -rf "${peer#* }/tako-programs"
    done
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# ---- what is worked on

# Sources of the packages that this project is built from, as a git repository, in an archive.
make_archive() {
    local sources=${CARGO_HOME:-$HOME/.cargo}/registry/src tree=$work/tree
    [ -d "$sources" ] || fail "$sources is missing; build the project first"
    mkdir "$tree"
    # The reader may have enough before the list ends.
    (cd "$sources" && find . -type f -size -64k | sort | head -n "$files_max" || true) >"$work/list"
    tar -C "$sources" -cf - -T "$work/list" | head -c "${mib_max}M" | tar -C "$tree" -xf - 2>/dev/null || true
    git -C "$tree" init -q
    git -C "$tree" add -f .
    git -C "$tree" -c user.name=bench -c user.email=bench@localhost commit -qm sources
    tar -C "$work" -cf "$work/tree.tar" tree
    echo "sources: $(find "$tree" -type f | wc -l) files, $(du -sm --apparent-size "$tree" | cut -f 1) MiB"
    rm -rf "$tree"
}

search() {
    if command -v rg >/dev/null; then
        rg --no-ignore -c 'unsafe impl' "$1" >/dev/null
    else
        grep -r -c 'unsafe impl' "$1" >/dev/null || true
    fi
}

# ---- measuring: figures go to one file for each file system and row, a line for each round

now_us() {
    echo "${EPOCHREALTIME/[.,]/}"
}

# timed LABEL ROW COMMAND...
timed() {
    local file=$work/figures/$1.$2 start
    start=$(now_us)
    "${@:3}"
    echo $(($(now_us) - start)) >>"$file"
}

# sources_round LABEL DIRECTORY
sources_round() {
    timed "$1" untar tar -C "$2" -xf "$work/tree.tar"
    # The first one looks at all contents, since the files are newer than the index.
    git -C "$2/tree" status --porcelain >/dev/null
    timed "$1" git git -C "$2/tree" status --porcelain >"$work/status"
    timed "$1" search search "$2/tree"
    # A cluster's mount has leases for a second after each use: within that time, and after it.
    timed "$1" git_again git -C "$2/tree" status --porcelain >"$work/status"
    timed "$1" search_again search "$2/tree"
    sleep 5
    timed "$1" git_idle git -C "$2/tree" status --porcelain >"$work/status"
    timed "$1" search_idle search "$2/tree"
    timed "$1" remove rm -r "$2/tree"
}

# redis_round LABEL DIRECTORY
redis_round() {
    mkdir "$2/redis"
    redis-server --port "$redis_port" --bind 127.0.0.1 --dir "$2/redis" --save "" --appendonly yes --appendfsync always \
        --auto-aof-rewrite-percentage 0 --daemonize no >"$work/redis.log" 2>&1 &
    redis=$!
    for _ in $(seq 100); do
        [ "$(redis-cli -p "$redis_port" ping 2>/dev/null)" != PONG ] || break
        kill -0 "$redis" || fail "redis-server does not start: $(tail -n 1 "$work/redis.log")"
        sleep 0.05
    done
    local clients
    for clients in 1 16; do
        redis-benchmark -p "$redis_port" -t set -n $((2000 + clients * 500)) -c "$clients" -d 64 --csv 2>/dev/null |
            tail -n 1 | tr -d '"' | cut -d , -f 2 | cut -d . -f 1 >>"$work/figures/$1.redis$clients"
    done
    kill "$redis"
    wait "$redis" || true
    redis=""
    rm -rf "$2/redis"
}

# ---- what came out

median() {
    sort -n "$1" | awk '{ line[NR] = $1 } END { print line[int((NR + 1) / 2)] }'
}

# row NAME ROW UNIT MOST [SUBJECT LIMIT]: times, or with the unit /s speeds, of which the bar is the least. Without a bar if
# MOST is -.
row() {
    local subject=$work/figures/${5:-Tako}.$2 limit=$work/figures/${6:-tmpfs}.$2 ratio verdict others="" label
    ratio=$(paste "$subject" "$limit" | awk '{ print $1 / $2 }' >"$work/ratios" && median "$work/ratios")
    verdict=$(awk -v ratio="$ratio" -v bar="$4" -v unit="$3" \
        'BEGIN { print ((unit == "/s" ? ratio >= bar : ratio <= bar) ? "met" : "MISSED") }')
    for label in "${measured_peers[@]}"; do
        others+="  $label $(figure "$(median "$work/figures/$label.$2")" "$3")"
    done
    verdict="$([ "$3" = /s ] && echo 'at least' || echo 'at most') $4 $verdict"
    [ -n "${BARS:-}" ] && [ "$4" != - ] || verdict=""
    printf '  %-26s %11s  %11s  %5.2f  %s%s\n' "$1" "$(figure "$(median "$subject")" "$3")" \
        "$(figure "$(median "$limit")" "$3")" "$ratio" "$verdict" "$others"
}

# faster_peer ROW UNIT: that with the least median time, or the greatest median speed.
faster_peer() {
    local label order=-n
    [ "$2" != /s ] || order=-nr
    for label in "${measured_peers[@]}"; do
        echo "$(median "$work/figures/$label.$1") $label"
    done | sort "$order" | sed -n '1s/.* //p'
}

figure() {
    case $2 in
        ms) awk -v us="$1" 'BEGIN { printf "%.1f ms", us / 1000 }' ;;
        *) echo "$1 $2" ;;
    esac
}

# ---- the run

[ -x "$tako" ] || fail "$tako is missing; run \`make build\`"
for command in git redis-server redis-benchmark; do
    command -v "$command" >/dev/null || fail "$command is missing; run \`scripts/install.sh bench\`"
done
mkdir "$work/figures" "$work/mounted" "$work/tmpfs"
"$tako" mkfs "$work/pool" --size 2G >/dev/null
"$tako" mount "$work/pool" "$work/mounted"
mkdir "$work/cluster" "$work/inside"
"$tako" up --name programs --nodes 3 --size 512M --directory "$work/pools" --mount "$work/cluster" >/dev/null
"$tako" up --name inside --nodes 3 --size 256M --directory "$work/pools" --mount "$work/inside" --inside >/dev/null
make_archive
measured_peers=() measured=("tmpfs $work/tmpfs" "Tako $work/mounted" "Cluster $work/cluster")
for peer in "${peers[@]}"; do
    label=${peer% *} directory=${peer#* }
    if ! mountpoint -q "$directory"; then
        echo "$label: not measured, since nothing is mounted on $directory; \`scripts/peers.sh up\` installs and mounts it"
        continue
    fi
    mkdir "$directory/tako-programs"
    measured+=("$label $directory/tako-programs")
    measured_peers+=("$label")
done
# All as often, and in turns.
for _ in $(seq "$rounds"); do
    for round in sources_round redis_round; do
        for place in "${measured[@]}"; do
            $round "${place%% *}" "${place#* }"
        done
        [ $round != redis_round ] || redis_round Inside "$work/inside"
    done
done
search_with=$(command -v rg >/dev/null && echo ripgrep || echo "grep -r")
printf '%-28s %11s  %11s  %5s\n' "programs, $rounds rounds" Tako tmpfs ratio
row "untar" untar ms 4
row "git status" git ms 1.3
row "$search_with" search ms 1.3
row "rm -r" remove ms 4
row "Redis SET, 1 client" redis1 /s 0.7
row "Redis SET, 16 clients" redis16 /s 0.7

printf '%-28s %11s  %11s  %5s\n' "a cluster of three members" cluster pool ratio
row "git status, repeated" git_again ms 1.25 Cluster Tako
row "$search_with, repeated" search_again ms 1.25 Cluster Tako
row "git status, after 5 s" git_idle ms - Cluster Tako
row "$search_with, after 5 s" search_idle ms - Cluster Tako
row "untar" untar ms - Cluster Tako
row "rm -r" remove ms - Cluster Tako
for clients in 1 16; do
    row "Redis SET, $clients client(s)" redis$clients /s - Cluster Tako
    row "the same, mounted inside" redis$clients /s - Inside Tako
done
if [ ${#measured_peers[@]} -gt 0 ]; then
    printf '%-28s %11s  %11s  %5s\n' "a cluster of three members" cluster "peer" ratio
    row "untar" untar ms 0.25 Cluster "$(faster_peer untar ms)"
    row "rm -r" remove ms 0.33 Cluster "$(faster_peer remove ms)"
    for clients in 1 16; do
        row "Redis SET, $clients client(s)" redis$clients /s 2 Cluster "$(faster_peer redis$clients /s)"
    done
    row "Redis SET, 1, inside" redis1 /s 3.5 Inside "$(faster_peer redis1 /s)"
    row "Redis SET, 16, inside" redis16 /s 2.5 Inside "$(faster_peer redis16 /s)"
fi
