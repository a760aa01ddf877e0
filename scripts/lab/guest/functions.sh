# shellcheck shell=dash
# What the scenes of the lab have in common. Sourced in a guest.

# The shell takes its own programs first, which can do less.
ip() {
    /bin/ip "$@"
}

# Loads modules in this order, which must be that of their dependencies. Those that are not there are in the kernel (`image.sh`).
load() {
    local module
    for module in "$@"; do
        [ ! -e "/modules/$module.ko" ] || insmod "/modules/$module.ko"
    done
}

load_rdma() {
    load crc32_generic ib_core ib_uverbs ib_cm iw_cm configfs rdma_cm rdma_ucm udp_tunnel ip6_udp_tunnel rdma_rxe
}

# Gives interface $1 the address $2 and makes it the RDMA device $3.
address() {
    ip addr add "$2/24" dev "$1"
    ip link set "$1" mtu 4200 up
    rdma link add "$3" type rxe netdev "$1"
}

# Three interfaces port1 to port3, each one end of a cable with the other end plugged into a bridge. They belong to one
# system, which must not take the short way between its own addresses.
bridge_of_three() {
    local number
    load veth llc stp bridge sch_netem
    for number in all default; do
        echo 0 >/proc/sys/net/ipv4/conf/$number/rp_filter
        echo 1 >/proc/sys/net/ipv4/conf/$number/accept_local
        echo 1 >/proc/sys/net/ipv4/conf/$number/arp_ignore
        echo 2 >/proc/sys/net/ipv4/conf/$number/arp_announce
    done
    ip link set lo up
    ip link add bridge type bridge mcast_snooping 0
    ip link set bridge mtu 4200 up
    for number in 1 2 3; do
        ip link add "port$number" type veth peer name "plug$number"
        ip link set "plug$number" mtu 4200 master bridge up
        address "port$number" "10.0.0.$number" "rxe$number"
    done
}

# All ports of the bridge, `up` or `down`.
ports() {
    local number
    for number in 1 2 3; do
        ip link set "port$number" "$1"
    done
}

# The interface of one of several guests, as an RDMA device.
on_network() {
    load virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net
    load_rdma
    ip link set lo up
    # shellcheck disable=SC2154 # init knows it
    address eth0 "10.0.0.$guest" rxe0
}

# Of the two modules of persistent memory the first becomes a DAX device, the second a DAX file system at /mnt.
persistent_memory() {
    load libnvdimm nfit nd_btt nd_pmem dax_pmem device_dax crc32c_generic jbd2 mbcache crc16 ext4
    cd /sys/bus/nd/devices
    make_dax namespace0.0 "$(cat region0/dax_seed)" dax_pmem
    make_dax namespace1.0 "$(cat region1/pfn_seed)" nd_pmem
    cd /
    /bin/mke2fs -q -t ext4 -b 4096 /dev/pmem1
    mount -t ext4 -o dax /dev/pmem1 /mnt
}

# Puts $2, a description of pages that is kept in memory, on namespace $1, and gives it to driver $3.
make_dax() {
    echo "$1" >"../drivers/nd_pmem/unbind" 2>/dev/null || true
    cat /proc/sys/kernel/random/uuid >"$2/uuid"
    echo ram >"$2/mode"
    echo 2097152 >"$2/align"
    echo "$1" >"$2/namespace"
    echo "$2" >"../drivers/$3/bind"
}
