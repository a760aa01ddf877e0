# shellcheck shell=dash
# The lab itself: a program of others goes from one device to another, over the bridge.
. /lab/functions.sh

load_rdma
bridge_of_three
rdma link
ibv_rc_pingpong -d rxe1 -g 1 -n 200 >/tmp/server &
until netstat -lnt | grep -q :18515; do :; done
ibv_rc_pingpong -d rxe2 -g 1 -n 200 10.0.0.1
wait $!
echo "passed pingpong of ibverbs-utils"
