# shellcheck shell=dash
# One guest: pools on a DAX device and on a DAX file system are made and mounted. The mount is killed, the pool is checked, and
# mounted again.
. /lab/functions.sh

# Contents of a file with this number.
contents() {
    seq "$1" 20000
}

write_files() {
    local number
    for number in 1 2 3 4 5; do
        contents $number | dd of="/files/$number" bs=64k conv=fsync 2>/dev/null
    done
    ln /files/1 /files/link
    mv /files/2 /files/moved
    sync
}

verify_files() {
    local number
    for number in 1 3 4 5; do
        contents $number | cmp - /files/$number
    done
    contents 1 | cmp - /files/link
    contents 2 | cmp - /files/moved
}

# Makes a pool with the other arguments; its memory must be of kind $1.
try() {
    local kind=$1 mounted
    shift
    /lab/tako mkfs "$@"
    /lab/tako info "$1" | grep "^memory  *$kind, "
    /lab/tako mount --foreground "$1" /files &
    mounted=$!
    until grep -q ' /files ' /proc/mounts; do sleep 0.2; done
    write_files
    kill -9 $mounted
    wait $mounted || true
    umount -l /files
    /lab/tako check "$1"
    /lab/tako mount "$1" /files
    verify_files
    umount /files
    /lab/tako check "$1"
    echo "passed dax: $1"
}

persistent_memory
load fuse
mkdir /files
try "DAX device" /dev/dax0.0
try "DAX file" /mnt/pool --size 32M
