# shellcheck shell=dash
# One guest: three devices on a bridge, persistent memory, and what is said where something is missing.
. /lab/functions.sh

# The lab itself: a program of others goes from one device to another, over the bridge.
pingpong() {
    ibv_rc_pingpong -e -d rxe1 -g 1 -n 50 >/dev/null &
    until netstat -lnt | grep -q :18515; do :; done
    ibv_rc_pingpong -e -d rxe2 -g 1 -n 50 10.0.0.1
    wait $!
    echo "passed pingpong of ibverbs-utils"
}

/lab/verbs-guest refuses "there is no RDMA device"
load_rdma
/lab/verbs-guest refuses "there is no RDMA device"
bridge_of_three
pingpong
mv /lib/x86_64-linux-gnu/libibverbs.so.1 /tmp/
/lab/verbs-guest refuses "libibverbs.so.1 cannot be loaded"
mv /tmp/libibverbs.so.1 /lib/x86_64-linux-gnu/
mv /lib/x86_64-linux-gnu/librdmacm.so.1 /tmp/
/lab/verbs-guest joins-not "librdmacm.so.1 cannot be loaded"
mv /tmp/librdmacm.so.1 /lib/x86_64-linux-gnu/
chmod 600 /dev/infiniband/*
su user -c '/lab/verbs-guest refuses "permission to use"'
chmod 666 /dev/infiniband/*
su user -c "ulimit -l 64; /lab/verbs-guest limit"
persistent_memory
ended=0
/lab/verbs-guest memory || ended=1
/lab/verbs-guest alone || ended=1
exit $ended
