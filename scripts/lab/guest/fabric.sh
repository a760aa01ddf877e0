# shellcheck shell=dash
# One guest: the suite of transports over RDMA, from one device on a bridge to another.
. /lab/functions.sh

/lab/fabric-guest refuses "there is no RDMA device"
load_rdma
bridge_of_three
persistent_memory
export TAKO_TEST_OPERATIONS=3000
ended=0
/lab/fabric-guest memory || ended=1
/lab/fabric-guest suite || ended=1
/lab/fabric-guest wrapped messages_arrive_in_order who_receives_a_message_sees_the_writes_before_it \
    a_slow_receiver_holds_back_its_sender_alone a_descriptor_that_lies_ends_the_endpoint \
    a_lost_endpoint_is_told_once a_closed_endpoint_is_lost_to_its_peer || ended=1
/lab/fabric-guest faults || ended=1
exit $ended
