# shellcheck shell=dash
# One guest: the suite of transports over RDMA, from one device on a bridge to another.
. /lab/functions.sh

/lab/fabric-guest refuses "there is no RDMA device"
load_rdma
/lab/fabric-guest refuses "there is no RDMA device"
bridge_of_three
mv /lib/x86_64-linux-gnu/libibverbs.so.1 /tmp/
/lab/fabric-guest refuses "libibverbs.so.1 cannot be loaded"
mv /tmp/libibverbs.so.1 /lib/x86_64-linux-gnu/
ports down
/lab/fabric-guest refuses "no port is active (rxe1 port 1 is down, rxe2 port 1 is down, rxe3 port 1 is down); set the"
ports up
chmod 600 /dev/infiniband/*
su user -c '/lab/fabric-guest refuses "permission to use"'
chmod 666 /dev/infiniband/*
su user -c 'ulimit -l 64; /lab/fabric-guest refuses "9850880 bytes cannot be registered: at most 65536 may be locked"'
persistent_memory
export TAKO_TEST_OPERATIONS=3000
ended=0
/lab/fabric-guest memory || ended=1
/lab/fabric-guest suite || ended=1
/lab/fabric-guest wrapped messages_arrive_in_order a_receiver_of_a_message_sees_the_writes_before_it \
    a_slow_receiver_holds_back_its_sender_alone a_descriptor_that_lies_ends_the_endpoint \
    a_lost_endpoint_is_told_once a_closed_endpoint_is_lost_to_its_peer || ended=1
/lab/fabric-guest faults || ended=1
/lab/fabric-guest shares || ended=1
exit $ended
