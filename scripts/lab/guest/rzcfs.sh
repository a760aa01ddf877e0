# shellcheck shell=dash
# One guest with two hosts, which are network namespaces with a cable: NFS on an ext4 RAM disk, and Tako over Ethernet frames.
# The clock counts instructions, one a nanosecond, of both hosts together.
. /lab/functions.sh

readonly sizes="1024 4096 16384 65536 1048576 16777216"

on_server() {
    nsenter --net=/run/netns/server "$@"
}

await() {
    until "$@" >/dev/null 2>&1; do sleep 0.1; done
}

# The server's interface has the address 10.0.0.1, the client's 10.0.0.2. Data has a queue of its own.
cable() {
    load veth
    ip link set lo up
    mkdir -p /run/netns
    ip netns add server
    ip link add tako0 numrxqueues 2 numtxqueues 2 type veth peer name tako0 netns server numrxqueues 2 numtxqueues 2
    ip addr add 10.0.0.2/24 dev tako0
    ip link set tako0 up
    ip -n server addr add 10.0.0.1/24 dev tako0
    ip -n server link set tako0 up
    ip -n server link set lo up
}

serve_nfs() {
    load crc32c_generic jbd2 mbcache crc16 ext4 sunrpc grace lockd nfs_acl auth_rpcgss nfsd
    load netfs fscache dns_resolver nfs nfsv4
    insmod /modules/brd.ko rd_nr=1 rd_size=98304
    /bin/mke2fs -q -t ext4 -b 4096 -O ^has_journal /dev/ram0
    mkdir -p /export /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
    mount /dev/ram0 /export
    chmod 777 /export
    echo '/export 10.0.0.0/24(rw,async,no_root_squash,no_subtree_check,fsid=0)' >/etc/exports
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    on_server sh -c 'mount -t nfsd nfsd /proc/fs/nfsd && exportfs -a && rpc.mountd -N 3 && rpc.nfsd -p 2049 -N 3 -G 10 -L 10 4'
    mkdir -p /nfs
    await mount -t nfs4 -o vers=4.2,addr=10.0.0.1,clientaddr=10.0.0.2 10.0.0.1:/ /nfs
}

serve_tako() {
    load fuse
    cat >/tmp/node.toml <<END
cluster = "lab"
name = "n1"
listen = ["10.0.0.1:7474"]
keys = "/lab/nodes/n1"
interface = "tako0"
data_queue = 1
[pool]
path = "/tmp/pool"
size = "128M"
[membership]
directory = "/tmp/membership"
[unit]
members = 1
END
    on_server /lab/tako serve --config /tmp/node.toml &
    server=$!
}

# Measures a mount of Tako, with the name $1 and the options $2, and then waits until its interface is free.
tako() {
    mkdir -p /tako
    /lab/tako mount -o "keys=/lab/nodes/client,$2" tako://10.0.0.1:7474/lab /tako
    # shellcheck disable=SC2086 # a list
    /lab/blocks /tako/file "$1" $sizes
    umount /tako
    while ip link show tako0 | grep -q xdp; do sleep 0.1; done
}

echo 127.0.0.1 localhost >/etc/hosts
mount -t tmpfs none /tmp
mkdir -p /run /var
export HOME=/tmp
cable
serve_nfs
# shellcheck disable=SC2086 # a list
/lab/blocks /nfs/file NFS $sizes
umount /nfs
serve_tako
tako "Tako, TCP" transport=tcp
tako "Tako, messages" transport=ethernet
tako "Tako, one-copy" transport=ethernet,io=client
tako "Tako, zero-copy" transport=ethernet,io=client,data_queue=1
kill "$server"
echo "passed rzcfs: all were measured"
