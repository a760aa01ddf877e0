#!/usr/bin/env bash
# GlusterFS (replica 2), MooseFS (goal 2) and Tako (two members over tcp) on tmpfs, for `tako bench cluster` and
# scripts/programs.sh to measure beside: servers in one network namespace, clients in another, mounted on /mnt/gluster,
# /mnt/mfs, /mnt/tako-tcp and, with cache=writeback, /mnt/tako-writeback. As root; installs the Debian packages of the first two.
# TAKO_POOL is the length of Tako's pools.
set -euo pipefail

readonly place=/dev/shm/tako-peers address=10.77.0.1
tako=${TAKO_BIN:-$(dirname "$0")/../target/release/tako}
readonly packages="glusterfs-server glusterfs-client moosefs-master moosefs-chunkserver moosefs-client iproute2 fuse3"

fail() {
    echo "peers.sh: $1" >&2
    exit 1
}

server() {
    nsenter --net=/run/netns/tako-servers "$@"
}

client() {
    nsenter --net=/run/netns/tako-clients "$@"
}

install_packages() {
    # shellcheck disable=SC2086 # the list is split on purpose
    dpkg -s $packages >/dev/null 2>&1 && return
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq $packages >/dev/null || fail "GlusterFS or MooseFS cannot be installed from here"
}

make_network() {
    ip netns add tako-servers
    ip netns add tako-clients
    ip link add tako-s netns tako-servers type veth peer name tako-c netns tako-clients
    server ip addr add "$address/24" dev tako-s
    client ip addr add 10.77.0.2/24 dev tako-c
    server ip link set lo up
    client ip link set lo up
    server ip link set tako-s up
    client ip link set tako-c up
}

up_gluster() {
    server glusterd -l "$place/glusterd.log"
    wait_until server gluster --mode=script volume list
    server gluster --mode=script volume create tako replica 2 "$address:$place/g1/b" "$address:$place/g2/b" force
    server gluster --mode=script volume start tako
    mkdir -p /mnt/gluster
    wait_until client mount -t glusterfs "$address:/tako" /mnt/gluster
}

up_moosefs() {
    local own=$place/mfs number
    mkdir -p "$own/var" /mnt/mfs
    cp /var/lib/mfs/metadata.mfs.empty "$own/var/metadata.mfs"
    printf '* / rw,alldirs,maproot=0\n* . rw\n' >"$own/exports"
    printf '%s\n' "WORKING_USER = root" "WORKING_GROUP = root" "DATA_PATH = $own/var" "EXPORTS_FILENAME = $own/exports" \
        "MATOML_LISTEN_HOST = $address" "MATOCS_LISTEN_HOST = $address" "MATOCL_LISTEN_HOST = $address" >"$own/master"
    server mfsmaster -c "$own/master" start
    for number in 1 2; do
        mkdir -p "$own/chunks$number"
        echo "$place/m$number" >"$own/disks$number"
        printf '%s\n' "WORKING_USER = root" "WORKING_GROUP = root" "DATA_PATH = $own/chunks$number" \
            "HDD_CONF_FILENAME = $own/disks$number" "HDD_LEAVE_SPACE_DEFAULT = 64MiB" "MASTER_HOST = $address" \
            "CSSERV_LISTEN_HOST = $address" "CSSERV_LISTEN_PORT = 943$number" >"$own/chunk$number"
        server mfschunkserver -c "$own/chunk$number" start
    done
    wait_until client mfsmount /mnt/mfs -H "$address"
    wait_until has_room /mnt/mfs
    client mfssetgoal 2 /mnt/mfs
    # Without it, deleted files keep their space for a day.
    client mfssettrashtime 0 /mnt/mfs
}

up_tako() {
    local own=$place/tako number
    mkdir -p "$own" /mnt/tako-tcp /mnt/tako-writeback
    "$tako" keys init "$own/keys" n1 >/dev/null
    "$tako" keys issue "$own/keys" n2 >/dev/null
    "$tako" keys issue "$own/keys" client >/dev/null
    for number in 1 2; do
        printf '%s\n' 'cluster = "peers"' "name = \"n$number\"" "listen = [\"$address:747$number\"]" \
            "keys = \"$own/keys/n$number\"" '[pool]' "path = \"$place/t$number/pool\"" "size = \"${TAKO_POOL:-2G}\"" \
            '[membership]' "directory = \"$own/membership\"" '[unit]' 'members = 2' >"$own/n$number.toml"
        server "$tako" serve --config "$own/n$number.toml" >"$own/n$number.log" 2>&1 &
    done
    wait_until client "$tako" mount -o "keys=$own/keys/client" "tako://$address:7471,$address:7472/peers" /mnt/tako-tcp
    wait_until client "$tako" mount -o "keys=$own/keys/client,cache=writeback" "tako://$address:7471,$address:7472/peers" \
        /mnt/tako-writeback
}

has_room() {
    [ "$(stat -f -c %a "$1")" -gt 0 ]
}

# Tries a command for half a minute.
wait_until() {
    for _ in $(seq 60); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.5
    done
    fail "it does not come to pass: $*"
}

up() {
    [ "$(id -u)" = 0 ] || fail "run it as root"
    [ ! -e "$place" ] || fail "$place is there; run \`$0 down\` first"
    install_packages
    mkdir "$place"
    trap down EXIT
    local name
    for name in g1 g2 m1 m2 t1 t2; do
        mkdir "$place/$name"
        mount -t tmpfs -o size=3G,mode=777 tmpfs "$place/$name"
    done
    mkdir "$place/g1/b" "$place/g2/b"
    make_network
    up_gluster
    up_moosefs
    up_tako
    trap - EXIT
    df -h /mnt/gluster /mnt/mfs /mnt/tako-tcp /mnt/tako-writeback
}

down() {
    trap - EXIT
    umount -l /mnt/gluster /mnt/mfs /mnt/tako-tcp /mnt/tako-writeback 2>/dev/null || true
    local process name
    # All that lives in the namespaces is ours.
    for name in tako-clients tako-servers; do
        for process in $(ip netns pids "$name" 2>/dev/null); do
            kill -9 "$process" 2>/dev/null || true
        done
        ip netns del "$name" 2>/dev/null || true
    done
    for name in g1 g2 m1 m2 t1 t2; do
        umount -l "$place/$name" 2>/dev/null || true
    done
    rm -rf "$place" /var/lib/glusterd/vols/tako
}

case ${1:-} in
    up) up ;;
    down) down ;;
    *)
        echo "usage: peers.sh up|down" >&2
        exit 2
        ;;
esac
