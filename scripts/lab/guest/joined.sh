# shellcheck shell=dash
# One of three guests on a network.
. /lab/functions.sh

load virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net
load_rdma
ip link set lo up
# shellcheck disable=SC2154 # init knows it
address eth0 "10.0.0.$guest" rxe0
/lab/verbs-guest joined "$guest"
