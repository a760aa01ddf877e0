# shellcheck shell=dash
# One guest with two processors: the ways of a request, and of a payload by its size, over RDMA. Emulated, so that only the ratios
# say anything.
. /lab/functions.sh

load_rdma
bridge_of_three
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
/lab/tako bench --quick "request and answer" >/tmp/requests
/lab/tako bench --quick --tune verbs >/tmp/payloads
sed 's/^/figure /' /tmp/requests /tmp/payloads
