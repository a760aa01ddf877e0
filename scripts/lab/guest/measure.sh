# shellcheck shell=dash
# One guest: the figures of the transport over RDMA. Emulated, so that only their ratios say anything.
. /lab/functions.sh

load_rdma
bridge_of_three
/lab/fabric-guest measure
