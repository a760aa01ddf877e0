# shellcheck shell=dash
# One guest: the figures of the transport over RDMA, in thousands of instructions.
. /lab/measure.sh
