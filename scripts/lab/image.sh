#!/usr/bin/env bash
# Builds what the guests of the lab boot from, of Debian packages that are downloaded and unpacked but not installed: a kernel
# (`vmlinux`) and a small system with RDMA in software (`base.cpio`), in target/lab. What is there already stays, unless this
# file has changed. `image.sh add FILE PROGRAM...` writes a cpio to go behind the other one: what is in scripts/lab for the
# guests, and programs of this machine in /lab, with the libraries they are linked to; directories as they are.
set -euo pipefail
cd "$(dirname "$0")/../.."

lab=$(realpath -m "${CARGO_TARGET_DIR:-target}")/lab
readonly lab
readonly unpacked=$lab/unpacked multiarch=x86_64-linux-gnu

# The kernel's package is named by the one that depends on the newest. Before Linux 6.2 no adapter registers memory that is mapped for
# loads only: with TAKO_LAB_KERNEL=linux-image-6.12-amd64 the scene `cluster` lends such memory.
readonly kernel=${TAKO_LAB_KERNEL:-linux-image-amd64}
readonly packages="
    busybox-static
    iproute2 libbpf1 libelf1 libmnl0 libbsd0 libcap2 zlib1g libmd0 libxtables12
    ibverbs-utils libibverbs1 ibverbs-providers librdmacm1 libnl-3-200 libnl-route-3-200
    libibverbs-dev librdmacm-dev
    e2fsprogs libext2fs2 libcom-err2 libblkid1 libuuid1 util-linux
    nfs-kernel-server nfs-common libevent-core-2.1-7 libtirpc3 libkeyutils1"
readonly programs="bin/ip sbin/tc usr/bin/rdma usr/bin/ibv_rc_pingpong sbin/mke2fs sbin/blkid
    usr/sbin/exportfs usr/sbin/rpc.nfsd usr/sbin/rpc.mountd sbin/mount.nfs"
# Nothing is linked to these: they are opened at run time. The last one is glibc's, for threads that end.
readonly opened="librdmacm.so.1 libibverbs/librxe-rdmav34.so libgcc_s.so.1"
readonly modules="
    crc32_generic ib_core ib_uverbs ib_cm iw_cm configfs rdma_cm rdma_ucm udp_tunnel ip6_udp_tunnel rdma_rxe
    veth llc stp bridge sch_netem
    virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net
    libnvdimm nfit nd_btt nd_pmem dax_pmem device_dax crc32c_generic jbd2 mbcache crc16 ext4
    sunrpc grace lockd nfs_acl auth_rpcgss nfsd netfs fscache dns_resolver nfs nfsv4 brd
    vfio vfio_iommu_type1 irqbypass vfio_virqfd vfio-pci-core vfio-pci
    fuse"
# Newer kernels have these in other modules.
readonly merged="fscache vfio_virqfd"

fail() {
    echo "lab/image.sh: $1" >&2
    exit 1
}

unpack() {
    local package image
    # Without the right to, with the lists that are there.
    apt-get update -qq 2>/dev/null || true
    image=$(apt-cache depends --important "$kernel" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    [ -n "$image" ] || fail "package $kernel is not known here; the lab is made of Debian's packages"
    rm -rf "$lab/packages" "$unpacked"
    mkdir -p "$lab/packages" "$unpacked/usr/lib"
    ln -s usr/lib "$unpacked/lib"
    # shellcheck disable=SC2086 # a list
    (cd "$lab/packages" && apt-get -qq -o APT::Sandbox::User=root download $packages "$image") ||
        fail "packages cannot be downloaded; run \`apt-get update\` and try again"
    for package in "$lab"/packages/*.deb; do
        case ${package##*/} in
            linux-image-*) dpkg-deb --fsys-tarfile "$package" | unpack_kernel ;;
            *) dpkg-deb --fsys-tarfile "$package" |
                tar -x -C "$unpacked" --keep-directory-symlink --exclude './usr/share/*' --exclude '*.a' ;;
        esac
    done
    rm -r "$lab/packages"
}

unpack_kernel() {
    local name wanted=('./boot/vmlinuz-*' '*/modules.builtin')
    for name in $modules; do
        wanted+=("*/$name.ko" "*/$name.ko.xz")
    done
    # One of these is there for each module, or none if it is built in: `add_module` checks that.
    tar -x -C "$unpacked" --keep-directory-symlink --wildcards "${wanted[@]}" 2>/dev/null || true
}

# Copies module $2 to directory $1, unless the kernel has it built in or in another module.
add_module() {
    local file
    file=$(find "$unpacked/usr/lib/modules" -name "$2.ko*")
    case $file in
        *.xz) xz -dc "$file" >"$1/$2.ko" ;;
        *.ko) cp "$file" "$1/" ;;
        *)
            [[ " $merged " = *" $2 "* ]] || grep -q "/$2\.ko$" "$unpacked"/usr/lib/modules/*/modules.builtin ||
                fail "the kernel has no module $2"
            ;;
    esac
}

# The kernel without its compression boots twice as fast.
extract_kernel() {
    local image
    image=$(echo "$unpacked"/boot/vmlinuz-*)
    # Behind it stands more, which is no error here.
    from_magic "$image" '\x28\xb5\x2f\xfd' | zstd -dc >"$lab/vmlinux.new" 2>/dev/null || true
    [ -s "$lab/vmlinux.new" ] ||
        from_magic "$image" '\xfd7zXZ\x00' | xz -dc --single-stream >"$lab/vmlinux.new" 2>/dev/null || true
    head -c 4 "$lab/vmlinux.new" | grep -q ELF || fail "no kernel was found in ${image##*/}"
    mv "$lab/vmlinux.new" "$lab/vmlinux"
}

# Copies to $1 the libraries that $2 is linked to: those of the packages, and this machine's for what these lack.
copy_libraries() {
    local library
    while read -r library; do
        case $library in
            */ld-linux-*) cp -uL "$library" "$1/lib64/" ;;
            *) cp -uL "$library" "$1/lib/$multiarch/" ;;
        esac
    done < <(LD_LIBRARY_PATH=$unpacked/usr/lib/$multiarch ldd "$2" | grep -o '/[^ ]*')
}

pack() {
    (cd "$1" && find . | "$unpacked/bin/busybox" cpio -o -H newc 2>/dev/null)
}

# Prints file $1 from the first bytes on that are like pattern $2, if there are any.
from_magic() {
    local offset
    offset=$(LC_ALL=C grep -obUaP -m 1 "$2" "$1" | head -n 1 | cut -d : -f 1)
    [ -z "$offset" ] || tail -c "+$((offset + 1))" "$1"
}

build_base() {
    local root=$lab/base file from module
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,mnt,modules,etc/libibverbs.d,lib64,"lib/$multiarch/libibverbs"}
    ln -s . "$root/usr"
    cp "$unpacked/bin/busybox" "$root/bin/"
    ln -s busybox "$root/bin/sh"
    cp "$unpacked/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
    printf 'root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n' >"$root/etc/passwd"
    for file in $programs; do
        cp "$unpacked/$file" "$root/bin/"
        copy_libraries "$root" "$unpacked/$file"
    done
    for file in $opened; do
        from=$unpacked/usr/lib/$multiarch/$file
        [ -e "$from" ] || from=/lib/$multiarch/$file
        cp -L "$from" "$root/lib/$multiarch/$file"
        copy_libraries "$root" "$from"
    done
    for module in $modules; do
        add_module "$root/modules" "$module"
    done
    pack "$root" >"$lab/base.cpio.new"
    mv "$lab/base.cpio.new" "$lab/base.cpio"
}

add() {
    local into=$1 root program
    shift
    root=$(mktemp -d "${into%/*}/add-XXXXXX")
    # It becomes that of the guest's root.
    chmod 755 "$root"
    mkdir -p "$root"/{lab,lib64,"lib/$multiarch"}
    cp scripts/lab/guest/init "$root/init"
    cp scripts/lab/guest/*.sh "$root/lab/"
    for program in "$@"; do
        [ ! -d "$program" ] || { cp -r "$program" "$root/lab/" && continue; }
        strip -o "$root/lab/${program##*/}" "$program"
        copy_libraries "$root" "$program"
    done
    pack "$root" >"$into"
    rm -r "$root"
}

case ${1:-} in
    add) shift && add "$@" ;;
    *)
        [ ! "$lab/base.cpio" -nt "$0" ] || [ ! -s "$lab/vmlinux" ] || [ "$(cat "$lab/kernel" 2>/dev/null)" != "$kernel" ] || exit 0
        # What an interrupted run leaves is not used.
        rm -f "$lab/kernel"
        unpack
        extract_kernel
        build_base
        echo "$kernel" >"$lab/kernel"
        ;;
esac
