#!/usr/bin/env bash
# Real programs on a mounted pool: a large C project and a Rust project are built, PostgreSQL and SQLite are killed at
# work, and so is the mount; git, rsync and tar copy to and fro; stress-ng asks all that it knows to ask of files. What each
# says it did must be there afterwards, and the check must find nothing. PostgreSQL also works on a cluster, and goes on without
# an error when its primary is killed. `soak.sh NAME...` runs only these. Nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

readonly all="c rust postgresql postgresql_cluster sqlite git rsync tar names stress"
tako=${TAKO_BIN:-$PWD/target/release/tako}
readonly bytes_needed=$((7 << 30))
readonly openssl_src=300.6.1 ripgrep=15.2.0
readonly seconds_of_work=10 workers=6 names=1000000

fail() {
    echo "soak.sh: $1" >&2
    exit 1
}

. scripts/place.sh

[ "$(id -u)" = 0 ] || fail "PostgreSQL and tar change users; run it as root"
work=$(mktemp -d "$(choose_parent)/tako-soak-XXXXXX")
chmod 755 "$work"
pool=$work/soak.pool
cluster=soak-$$
mounted=$work/mounted
aside=$work/aside
server=""
jobs=()

clean_up() {
    trap - EXIT
    end_jobs
    stop_postgresql
    "$tako" umount "$mounted" 2>/dev/null || fusermount3 -uz "$mounted" 2>/dev/null || true
    end "$server"
    "$tako" down --name "$cluster" --remove >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# Kills a process and waits until it is gone.
end() {
    [ -n "$1" ] || return 0
    kill -9 "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

end_jobs() {
    local job
    for job in "${jobs[@]}"; do
        end "$job"
    done
    jobs=()
}

mount_pool() {
    local ready
    exec {ready}< <(exec "$tako" mount --foreground "$pool" "$mounted" 2>"$work/mount.log")
    server=$!
    read -r <&"$ready" || fail "the mount ended: $(cat "$work/mount.log")"
    exec {ready}<&-
}

# The process that serves the mount is killed, and the pool is mounted again.
kill_mount() {
    end "$server"
    "$tako" check "$pool" >"$work/check" || fail "after a kill: $(head -n 5 "$work/check")"
    mount_pool
}

# ---- a cluster of three nodes in place of the pool

start_cluster() {
    "$tako" up --name "$cluster" --nodes 3 --size 1G --directory "$work/pools" --mount "$mounted" >/dev/null
}

# The process of the node that serves.
primary() {
    "$tako" status --name "$cluster" --json | python3 -c '
import json, sys
print(*(node["pid"] for node in json.load(sys.stdin)["nodes"] if node["role"] == "primary"))'
}

# Waits until all members are in sync, with the same records.
wait_for_members() {
    local attempt
    for attempt in {1..1200}; do
        "$tako" status --name "$cluster" --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
unit, tails = status["unit"], {node["tail"] for node in status["nodes"]}
sys.exit(not (status["serving"] and unit["in_sync"] == unit["members"] and len(tails) == 1))' && return
        sleep 0.1
    done
    fail "the members are not in sync after $attempt looks at them"
}

end_cluster() {
    "$tako" umount "$mounted" || fail "the mount is still in use"
    wait_for_members
    "$tako" down --name "$cluster" >/dev/null
    local member
    for member in "$work"/pools/*; do
        "$tako" check "$member" >"$work/check" || fail "the check of $member finds $(head -n 5 "$work/check")"
    done
    "$tako" down --name "$cluster" --remove >/dev/null
}

# ---- the work, each with the mount as its place

# The sources of a crate, and of what it needs, on the mount.
fetch() {
    local home=${CARGO_HOME:-$HOME/.cargo}
    export CARGO_HOME=$mounted/cargo
    mkdir -p "$CARGO_HOME" "$mounted/fetch/src"
    [ ! -e "$home/config.toml" ] || cp "$home/config.toml" "$CARGO_HOME/"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n%s = "=%s"\n' \
        "$1" "$2" >"$mounted/fetch/Cargo.toml"
    : >"$mounted/fetch/src/lib.rs"
    (cd "$mounted/fetch" && cargo fetch -q)
}

# OpenSSL: its program is then used. It comes as a crate. The compiler does not optimise: it is files that are tried.
c() {
    (fetch openssl-src "$openssl_src")
    local sources
    sources=$(echo "$mounted"/cargo/registry/src/*/openssl-src-*/openssl)
    (cd "$sources" && CFLAGS=-O0 ./Configure no-module no-legacy no-tests no-docs no-shared >../configure.log && make -j2 -s build_sw >../make.log 2>&1) ||
        fail "OpenSSL does not build: $(tail -n 3 "$sources/../make.log")"
    local file=$sources/libcrypto.a
    [ "$("$sources/apps/openssl" sha256 -r "$file" | cut -d ' ' -f 1)" = "$(sha256sum "$file" | cut -d ' ' -f 1)" ] ||
        fail "the OpenSSL that was built counts wrong"
    local before
    before=$(sum "$sources")
    kill_mount
    [ "$(sum "$sources")" = "$before" ] || fail "after a kill the files are others"
}

# A checksum of all files in a directory.
sum() {
    find "$1" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum
}

# ripgrep: its program then searches its sources.
rust() {
    local home=${CARGO_HOME:-$HOME/.cargo}
    mkdir -p "$mounted/cargo"
    [ ! -e "$home/config.toml" ] || cp "$home/config.toml" "$mounted/cargo/"
    CARGO_HOME=$mounted/cargo cargo install -q --locked "ripgrep@$ripgrep" --root "$mounted/ripgrep" \
        --target-dir "$mounted/ripgrep/target" 2>"$work/cargo.log" ||
        fail "ripgrep does not build: $(tail -n 3 "$work/cargo.log")"
    local found expected
    found=$("$mounted/ripgrep/bin/rg" -uuu -c --no-filename unsafe "$mounted/cargo/registry/src" | awk '{ n += $1 } END { print n }')
    expected=$(grep -rac --no-filename unsafe "$mounted/cargo/registry/src" | awk '{ n += $1 } END { print n }')
    [ "$found" = "$expected" ] || fail "the ripgrep that was built finds $found lines instead of $expected"
}

postgres() {
    (cd / && setpriv --reuid postgres --regid postgres --clear-groups "$@")
}

start_postgresql() {
    rm -f "$mounted/postgresql/postmaster.pid"
    postgres "$binaries/pg_ctl" -s -w -t 120 -D "$mounted/postgresql" -l "$work/sockets/log" \
        -o "-k $work/sockets -c listen_addresses= -c shared_buffers=64MB" start ||
        fail "PostgreSQL does not start: $(tail -n 3 "$work/sockets/log")"
    postmaster=$(head -n 1 "$mounted/postgresql/postmaster.pid")
}

# Kills all of its processes.
stop_postgresql() {
    [ -n "${postmaster:-}" ] || return 0
    local children
    children=$(ps -o pid= --ppid "$postmaster" || true)
    # shellcheck disable=SC2086 # a list
    kill -9 "$postmaster" $children 2>/dev/null || true
    tail -s 0.1 --pid="$postmaster" -f /dev/null
    postmaster=""
}

query() {
    postgres psql -qAtX -h "$work/sockets" -d postgres -c "$1"
}

# Each transaction that pgbench was told is committed is in its log. $1 kills something meanwhile.
postgresql_round() {
    query 'TRUNCATE counter; INSERT INTO counter SELECT n, 0 FROM generate_series(0, 3) n' >/dev/null
    rm -f "$work"/sockets/committed*
    postgres pgbench -n -h "$work/sockets" -c 4 -j 2 -T 600 -l --log-prefix "$work/sockets/committed" \
        -f "$work/sockets/count@1" -b tpcb-like@1 postgres >"$work/pgbench.log" 2>&1 &
    local bench=$!
    jobs+=("$bench")
    sleep "$seconds_of_work"
    "$1"
    wait "$bench" || true
    start_postgresql
    local client told kept
    for client in 0 1 2 3; do
        # In the log, the fourth field is the number of the script.
        told=$(cat "$work"/sockets/committed* | awk -v client="$client" '$1 == client && $4 == 0' | wc -l)
        kept=$(query "SELECT n FROM counter WHERE client = $client")
        [ "$told" -gt 0 ] || fail "client $client committed nothing: $(tail -n 2 "$work/pgbench.log")"
        [ "$kept" -ge "$told" ] || fail "client $client was told of $told commits, and $kept are there"
        [ "$kept" -le $((told + 1)) ] || fail "client $client was told of $told commits only, and $kept are there"
    done
    [ "$(query 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)')" = t ] ||
        fail "the balances do not agree"
    postgres "$binaries/pg_amcheck" -h "$work/sockets" --install-missing --heapallindexed -d postgres >"$work/amcheck.log" 2>&1 ||
        fail "pg_amcheck: $(head -n 3 "$work/amcheck.log")"
}

kill_postgresql() {
    stop_postgresql
}

kill_below_postgresql() {
    end "$server"
    stop_postgresql
    kill_mount
}

# Nothing fails that works on the cluster.
kill_primary_below_postgresql() {
    local bench=${jobs[-1]}
    kill -9 "$(primary)"
    sleep "$seconds_of_work"
    kill -0 "$bench" 2>/dev/null || fail "pgbench ended with the primary: $(tail -n 2 "$work/pgbench.log")"
    ! grep -q ERROR "$work/sockets/log" || fail "PostgreSQL: $(grep -m 3 ERROR "$work/sockets/log")"
    stop_postgresql
    "$tako" up --name "$cluster" >/dev/null
}

postgresql_cluster() {
    prepare_postgresql
    postgresql_round kill_primary_below_postgresql
    postgresql_round kill_primary_below_postgresql
    end_postgresql
}

postgresql() {
    prepare_postgresql
    postgresql_round kill_postgresql
    postgresql_round kill_below_postgresql
    end_postgresql
}

prepare_postgresql() {
    binaries=$(dirname "$(find /usr/lib/postgresql -name initdb | sort -V | tail -n 1)")
    mkdir -p "$work/sockets" "$mounted/postgresql"
    chown postgres "$work/sockets" "$mounted/postgresql"
    chmod 700 "$mounted/postgresql"
    postgres "$binaries/initdb" -k -A trust -D "$mounted/postgresql" >"$work/initdb.log" 2>&1 ||
        fail "initdb: $(tail -n 3 "$work/initdb.log")"
    echo 'UPDATE counter SET n = n + 1 WHERE client = :client_id' >"$work/sockets/count"
    start_postgresql
    query 'CREATE TABLE counter (client int PRIMARY KEY, n int NOT NULL)'
    postgres pgbench -q -i -s 5 -h "$work/sockets" postgres >"$work/pgbench.log" 2>&1 ||
        fail "pgbench: $(tail -n 2 "$work/pgbench.log")"
}

end_postgresql() {
    postgres "$binaries/pg_ctl" -s -w -D "$mounted/postgresql" stop
    postmaster=""
    postgres "$binaries/pg_checksums" --check -D "$mounted/postgresql" >/dev/null || fail "pg_checksums finds damage"
}

# Several processes write; what each was told is committed it notes elsewhere.
sqlite() {
    local mode
    cat >"$work/writer.py" <<'PYTHON'
import sqlite3, sys
database, mode, worker, notes = sys.argv[1:]
connection = sqlite3.connect(database, timeout=60, isolation_level=None)
if mode != "wal":  # which stays the database's own
    connection.execute(f"PRAGMA journal_mode={mode}")
connection.execute("PRAGMA synchronous=FULL")
n = connection.execute("SELECT coalesce(max(n), 0) FROM t WHERE worker = ?", (worker,)).fetchone()[0]
with open(notes, "a") as notes:
    while True:
        n += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?, ?, randomblob(abs(random()) % 9000))", (worker, n))
        connection.execute("DELETE FROM t WHERE worker = ? AND n = ? - 500", (worker, n))
        connection.execute("COMMIT")
        print(n, file=notes, flush=True)
PYTHON
    for mode in wal delete truncate; do
        local round worker told kept
        sqlite3 "$mounted/$mode.db" "PRAGMA journal_mode=$mode;
            CREATE TABLE t (worker, n, data, PRIMARY KEY (worker, n))" >/dev/null
        for round in processes mount; do
            local all_told=0
            for ((worker = 0; worker < workers; worker++)); do
                python3 "$work/writer.py" "$mounted/$mode.db" "$mode" "$worker" "$work/notes-$mode-$worker" 2>"$work/writer.log" &
                jobs+=("$!")
            done
            sleep $((seconds_of_work / 2))
            if [ "$round" = mount ]; then end "$server"; fi
            end_jobs
            if [ "$round" = mount ]; then kill_mount; fi
            [ "$(sqlite3 "$mounted/$mode.db" 'PRAGMA integrity_check')" = ok ] || fail "SQLite finds damage, $mode"
            for ((worker = 0; worker < workers; worker++)); do
                # One may have had no turn.
                told=$(tail -n 1 "$work/notes-$mode-$worker" 2>/dev/null || true)
                told=${told:-0} all_told=$((all_told + told))
                kept=$(sqlite3 "$mounted/$mode.db" "SELECT coalesce(max(n), 0) FROM t WHERE worker = '$worker'")
                [ "$kept" -ge "$told" ] && [ "$kept" -le $((told + 1)) ] ||
                    fail "worker $worker was told of commit $told, and $kept is there, $mode"
            done
            [ "$all_told" -gt 0 ] || fail "nothing was committed, $mode: $(tail -n 1 "$work/writer.log")"
        done
    done
}

git() {
    local own=$PWD
    command git clone -q --no-local "$own" "$mounted/clone"
    command git -C "$mounted/clone" fsck --full --strict >"$work/fsck" 2>&1 || fail "git fsck: $(head -n 3 "$work/fsck")"
    command git -C "$mounted/clone" gc -q --aggressive --prune=now
    kill_mount
    command git -C "$mounted/clone" fsck --full --strict >"$work/fsck" 2>&1 || fail "git fsck: $(head -n 3 "$work/fsck")"
    command git clone -q --no-local "$mounted/clone" "$aside/clone"
    [ "$(command git -C "$mounted/clone" rev-parse HEAD)" = "$(command git -C "$aside/clone" rev-parse HEAD)" ] ||
        fail "the clone of the clone is another"
    [ -z "$(command git -C "$mounted/clone" status --porcelain)" ] || fail "the clone has changed"
}

# There and back; then each says that there is nothing to do.
rsync() {
    local source=/usr/share/doc options="-aHX --numeric-ids"
    [ "$(find "$source" -type f | head -n 500 | wc -l)" = 500 ] || source=/usr/include
    # shellcheck disable=SC2086 # options
    {
        command rsync $options "$source/" "$mounted/there/"
        kill_mount
        command rsync $options "$mounted/there/" "$aside/back/"
        local pair
        for pair in "$source/ $mounted/there/" "$mounted/there/ $aside/back/"; do
            [ -z "$(command rsync $options -cni --delete $pair)" ] || fail "rsync finds differences: $pair"
        done
    }
    diff -r --no-dereference "$source" "$aside/back" >"$work/diff" || fail "$(head -n 3 "$work/diff")"
}

# A tree with all that a file can have goes into an archive and comes out of it: the archives of both are the same, bit by
# bit.
tar() {
    local tree=$mounted/tree name
    mkdir -p "$tree/deep/er" "$mounted/again"
    for name in {1..200}; do
        head -c $((name * 997)) /dev/urandom >"$tree/deep/$name"
        ln "$tree/deep/$name" "$tree/deep/er/linked-$name"
        ln -s "../$name" "$tree/deep/er/symbolic-$name"
    done
    ln -s "$(printf 'x%.0s' {1..300})" "$tree/long"
    mkfifo "$tree/pipe"
    mknod "$tree/device" c 1 3
    setfattr -n user.one -v "$(printf 'v%.0s' {1..900})" "$tree/deep/1"
    setfattr -n trusted.two -v 0x00ff "$tree/deep"
    setfacl -m u:daemon:rwx,g:bin:r,m:rx "$tree/deep/2"
    setfacl -d -m u:daemon:rwx "$tree/deep/er"
    for name in 0 1 40 500000; do
        printf end | dd of="$tree/sparse" bs=1 seek=$((name * 5000)) conv=notrunc status=none
    done
    truncate -s 8G "$tree/sparse"
    chmod 6711 "$tree/deep/3"
    chown daemon:bin "$tree/deep/4"
    touch -d '2001-02-03 04:05:06.123456789' "$tree/deep/5"
    archive "$tree" "$aside/first.tar"
    command tar -C "$mounted/again" --xattrs --xattrs-include='*' --acls -xpf "$aside/first.tar"
    kill_mount
    archive "$mounted/again" "$aside/second.tar"
    cmp "$aside/first.tar" "$aside/second.tar" || fail "the archive of what came out of an archive is another"
    local blocks
    blocks=$(stat -c %b "$mounted/again/sparse")
    [ "$blocks" -le 64 ] || fail "the sparse file takes $blocks blocks of 512 bytes"
    [ "$(stat -c %h "$mounted/again/deep/1")" = 2 ] || fail "a hard link became a copy"
}

archive() {
    command tar -C "$1" --xattrs --xattrs-include='*' --acls -S --sparse-version=0.0 --sort=name --numeric-owner --format=posix \
        --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -cf "$2" .
}

# A directory with a million files.
names() {
    python3 - "$mounted/names" "$names" <<'PYTHON' || fail "the directory is not what was made of it"
import os, sys, time
directory, count = sys.argv[1], int(sys.argv[2])
os.mkdir(directory)
os.chdir(directory)
def timed(what, work):
    start = time.monotonic()
    work()
    print(f"    {what}: {(time.monotonic() - start) / count * 1e6:.1f} µs for each of {count}")
def create():
    for n in range(count):
        os.close(os.open(f"file-{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
def listed():
    assert sorted(os.listdir()) == sorted(f"file-{n}" for n in range(count))
def stat():
    assert len({os.lstat(f"file-{n}").st_ino for n in range(count)}) == count
def unlink():
    for n in range(count):
        os.unlink(f"file-{n}")
for work in (create, listed, stat, unlink):
    timed(work.__name__, work)
assert os.listdir() == []
os.chdir("/")
os.rmdir(directory)
PYTHON
}

# What stress-ng knows to ask of files, descriptors and mapped memory, and verifies: each from two processes, for a while.
stress() {
    local stressor
    mkdir -p "$mounted/stress"
    for stressor in access aio chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fcntl \
        file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix ioprio lease link locka \
        lockf lockofd madvise mknod mmap mmapfixed mmapmany mremap msync msyncmany open readahead rename seek sendfile \
        splice symlink sync-file touch utime xattr; do
        stress-ng --temp-path "$mounted/stress" --"$stressor" 2 --timeout 4s --verify >"$work/stress.log" 2>&1 ||
            fail "stress-ng, $stressor: $(grep -m 3 fail "$work/stress.log")"
    done
    [ -z "$(ls -A "$mounted/stress")" ] || fail "stress-ng leaves $(ls -A "$mounted/stress")"
    kill_mount
}

# ---- one after the other

scripts/install.sh soak
[ -x "$tako" ] || fail "there is no $tako; run \`make build\`"
binaries="" postmaster=""
for name in ${*:-$all}; do
    case " $all " in *" $name "*) ;; *) fail "there is no '$name'; there are: $all" ;; esac
    mkdir -p "$mounted" "$aside"
    if [[ $name = *_cluster ]]; then
        start_cluster
    else
        "$tako" mkfs "$pool" --size 5G --inodes 1200000 >/dev/null
        mount_pool
    fi
    start=$EPOCHREALTIME
    "$name"
    seconds=$(awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.0f", to - from }')
    if [[ $name = *_cluster ]]; then
        end_cluster
        echo "  $name: $seconds s, $(tail -n 1 "$work/check")"
        rm -rf "$aside"
        continue
    fi
    "$tako" umount "$mounted" || fail "$name: the mount is still in use"
    wait "$server" || fail "$name: the mount did not end well: $(cat "$work/mount.log")"
    server=""
    "$tako" check "$pool" >"$work/check" || fail "$name: the check finds $(head -n 5 "$work/check")"
    echo "  $name: $seconds s, $(tail -n 1 "$work/check")"
    rm -rf "$pool" "$aside"
done
