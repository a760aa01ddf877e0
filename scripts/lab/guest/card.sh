# shellcheck shell=dash
# Two guests on one cable. In the first one a process drives the adapter and receives into a pool; the second one sends by AF_XDP.
. /lab/functions.sh

# shellcheck disable=SC2154 # init knows it
if [ "$guest" = 1 ]; then
    load irqbypass vfio vfio_iommu_type1 vfio_virqfd vfio-pci-core vfio-pci
    echo vfio-pci >/sys/bus/pci/devices/0000:00:05.0/driver_override
    echo 0000:00:05.0 >/sys/bus/pci/drivers_probe
    /lab/card-guest victim 0000:00:05.0 >/tmp/victim &
    until grep -q held /tmp/victim; do kill -0 $!; done
    kill -9 $!
    wait $! || true
    /lab/card-guest card 0000:00:05.0
else
    load virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net
    ip link set eth1 up
    /lab/card-guest peer eth1 52:54:00:00:01:01
fi
