#!/usr/bin/env bash
# Installs what the tests and the demo need and this machine lacks, and with `soak`, `bench`, `experiments` or `lab` what these
# need; says nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

# Each command that is needed, and the Debian package it comes from.
needed="
    fusermount3:fuse3 git:git sqlite3:sqlite3 redis-server:redis-server redis-cli:redis-tools
    pkg-config:pkg-config gcc:gcc gcc:libc6-dev make:make setfattr:attr setfacl:acl ps:procps
    python3:python3 etcd:etcd-server ip:iproute2"
[ "${1:-}" != soak ] || needed+=" pgbench:postgresql pg_ctlcluster:postgresql rsync:rsync perl:perl setpriv:util-linux stress-ng:stress-ng"
[ "${1:-}" != bench ] || needed+=" rg:ripgrep redis-benchmark:redis-tools"
[ "${1:-}" != experiments ] || needed+=" fio:fio redis-benchmark:redis-tools nsenter:util-linux"
[ "${1:-}" != lab ] || needed+=" qemu-system-x86_64:qemu-system-x86 xz:xz-utils zstd:zstd strip:binutils setpriv:util-linux"

install_packages() {
    local missing="" pair
    for pair in $needed; do
        command -v "${pair%%:*}" >/dev/null || missing+=" ${pair##*:}"
    done
    # It has no command.
    [ "${1:-}" != bench ] || pkg-config --exists fuse3 2>/dev/null || missing+=" libfuse3-dev"
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null ||
        fail "packages are missing; install what your system calls$missing and try again"
    [ "$(id -u)" = 0 ] ||
        fail "packages are missing; run \`sudo apt-get install$missing\` and try again"

    echo "installing$missing"
    keep_services_stopped
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # the list is split on purpose
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
    case $missing in
        *redis-server*) update-rc.d redis-server disable >/dev/null ;;
    esac
    case $missing in
        *etcd-server*) update-rc.d etcd disable >/dev/null ;;
    esac
    case $missing in
        *postgresql*) update-rc.d postgresql disable >/dev/null ;;
    esac
}

# Packages ask this file whether their service may start. One that is already here stays as it is.
keep_services_stopped() {
    local policy=/usr/sbin/policy-rc.d
    [ ! -e "$policy" ] || return 0
    # shellcheck disable=SC2064 # the path is meant as it is now
    trap "rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
}

check_rust() {
    local wanted found
    command -v cargo >/dev/null ||
        fail "cargo is missing; install Rust as https://rustup.rs says and try again"
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    # Asked outside the project, since an old cargo cannot read its manifest.
    found=$(cd / && cargo --version | cut -d ' ' -f 2)
    printf '%s\n' "$wanted" "$found" | sort -CV ||
        fail "Rust $found is too old; run \`rustup update\` to get $wanted or later and try again"
}

# Installs a program from its crate, unless that very version is here or can be linked from PATH.
install_tool() {
    local name=$1 version=$2 directory=target/tools/bin program
    program=$directory/$name
    ! has_version "$program" "$name $version" || return 0
    mkdir -p "$directory"
    rm -f "$program"
    if has_version "$name" "$name $version"; then
        ln -s "$(command -v "$name")" "$program"
    else
        echo "installing $name $version"
        cargo install --quiet --locked --root target/tools "$name@$version"
    fi
}

has_version() {
    [ "$("$1" --version 2>/dev/null)" = "$2" ]
}

install_packages "$@"
check_rust
install_tool fsx 0.3.2
install_tool pjdfstest 0.2.2
[ -c /dev/fuse ] ||
    fail "/dev/fuse is missing; run \`modprobe fuse\`, or give the container --device /dev/fuse --cap-add SYS_ADMIN"
