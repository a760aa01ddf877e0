# shellcheck shell=dash
# One guest: the suite of transports over RDMA, from one device on a bridge to another.
. /lab/functions.sh

/lab/fabric-guest refuses "there is no RDMA device"
load_rdma
bridge_of_three
export TAKO_TEST_OPERATIONS=3000
ended=0
/lab/fabric-guest suite || ended=1
/lab/fabric-guest faults || ended=1
exit $ended
