# shellcheck shell=dash
# Three guests, each a node of one cluster over RDMA. The first one keeps the map, mounts, and leads the scene. The primary sends
# records and their data to a group, by datagrams over RDMA. Its guest is reset while files are written: its connections are not
# closed. The pools are on a DAX file system, which a device for RDMA does not reach, on a DAX device, and in memory. In the end
# those of the two members that are left are compared.
. /lab/functions.sh

readonly source=tako://10.0.0.1:7474,10.0.0.2:7474,10.0.0.3:7474/lab keys=/lab/nodes/client
# Bytes of a file.
length=32768
# shellcheck disable=SC2154 # init knows it
readonly node=n$guest
case $guest in
    1) readonly pool=/mnt/pool ;;
    2) readonly pool=/dev/dax0.0 ;;
    *) readonly pool=/tmp/pool ;;
esac

# Waits until the command succeeds; the scene has a time-out.
await() {
    until "$@" >/dev/null 2>&1; do sleep 0.5; done
}

# Starts the node of this guest, and reports its status at port 97.
serve() {
    cat >/tmp/node.toml <<END
cluster = "lab"
name = "$node"
listen = ["10.0.0.$guest:7474"]
keys = "/lab/nodes/$node"
group = "on"
[pool]
path = "$pool"
size = "16M"
[membership.etcd]
endpoints = ["http://10.0.0.1:2379"]
[unit]
members = 3
END
    /lab/tako serve --config /tmp/node.toml 2>>/tmp/serve.log &
    server=$!
    nc -ll -p 97 -e /lab/tako status --name lab --json &
}

stop() {
    kill "$server"
    wait "$server"
    /lab/tako check "$pool"
    echo "passed cluster: pool of $node at $pool is sound"
}

# Node $1 reports a line with this pattern.
reports() {
    nc "10.0.0.$1" 97 | grep -q "$2"
}

# Value of counter $2 of node $1.
counter() {
    nc "10.0.0.$1" 97 | sed -n "s/.*\"$2\": \([0-9][0-9]*\).*/\1/p"
}

# Node $1 reports counter $2 with more than $3.
exceeds() {
    [ "$(counter "$1" "$2")" -gt "$3" ]
}

# The state of the cluster has a line with this pattern.
state() {
    TAKO_KEYS=$keys /lab/tako status "$source" | grep "$1"
}

# Contents of a file with this number.
contents() {
    seq "$1" 100000 | head -c $length
}

# Acknowledged by the cluster when it returns.
write() {
    contents "$2" | dd of="$1" bs=$length conv=fsync 2>/dev/null
}

verify() {
    contents "$2" | cmp - "$1"
}

# In directory $1, writes files 1, 2, ... and notes each in file $2, until there is /tmp/stop.
write_files() {
    local number=0
    until [ -e /tmp/stop ]; do
        number=$((number + 1))
        write "$1/$number" $number
        echo $number >>"$2"
    done
}

count() {
    wc -l <"$1"
}

has_lines() {
    [ "$(count "$1")" -ge "$2" ]
}

# All files in directory $1 that file $2 notes hold what was written.
verify_files() {
    local number
    while read -r number; do
        verify "$1/$number" "$number"
    done <"$2"
}

all_choose_verbs() {
    local member
    for member in 1 2 3; do
        nc 10.0.0.$member 97 | grep '"transport"' | sort -u >/tmp/transports
        [ "$(grep -o '"transport".*' /tmp/transports)" = '"transport": "verbs",' ]
    done
    nc 10.0.0.1 97 | grep '"shm: ' | sort -u
    reports "$primary" '"serving": true'
    [ "$(nc 10.0.0.1 97 | grep -c '"role": "replica"')" = 2 ]
    echo "passed cluster: three nodes and their clients choose verbs"
}

# Makes a node of another guest the primary, and notes the guests of the primary and of the third node. This guest must not be
# reset: it keeps the map.
find_primary() {
    while state 'served by n1'; do
        kill -9 "$server"
        wait "$server" || true
        await state 'served by n[23]'
        serve
        await state '3 of 3 members in sync'
    done
    primary=$(state 'served by' | sed 's/.*served by n\([23]\).*/\1/')
    third=$((5 - primary))
}

# Primary $1 ships by a group over verbs to members $2.
ships_by_the_group() {
    local leader=$1 sent
    await reports "$leader" '"reason": "multicast over verbs at 239\.'
    sent=$(counter "$leader" sent)
    # A member that has not joined yet gets the file by its link. Under load a datagram may be late, and is sent again.
    await write_by_the_group "$leader" "$2"
    exceeds "$leader" sent "$sent"
    verify /messages/grouped 3
    echo "figure cluster: n$leader sent $(counter "$leader" sent) frames to its group, and $(counter "$leader" sent_again) of them again"
}

# Writes a file with the first mount; whether members $2 have got messages by the group of node $1 meanwhile, all of them by
# datagrams: frames that are sent again go by links.
write_by_the_group() {
    local member before="" again
    again=$(counter "$1" sent_again)
    [ -n "$again" ] || return 1
    for member in $2; do
        before="$before $member:$(counter "$member" received)"
    done
    write /messages/grouped 3
    [ "$(counter "$1" sent_again)" = "$again" ] || return 1
    for member in $before; do
        exceeds "${member%:*}" received "${member#*:}" || return 1
    done
}

# Writes with the first mount until the primary has read data of a message in the memory of the mount, and then some more files, by
# one message each.
long_messages_are_pulled() {
    local number=0 before
    until exceeds "$primary" pulled 0; do
        number=$((number + 1))
        write_at_once /messages/pulled $number
    done
    before=$(counter "$primary" pulled)
    for number in 1 2 3 4 5; do
        write_at_once /messages/pulled $number
    done
    verify /messages/pulled 5
    [ "$(counter "$primary" pulled)" = $((before + 5)) ]
    echo "passed cluster: the primary pulls long messages over verbs"
}

# Writes with the third mount, which answers early, until the primary has copied data out of its memory, and then a file that is copied
# so: most of it, since the mount may lack a grant or a free block for a part.
early_writes_are_copied() {
    local number=0 before copied length=524288
    mkdir /early/e
    if ! lends_memory; then
        early_writes_are_sent
        return
    fi
    until exceeds "$primary" pulled_early 0; do
        number=$((number + 1))
        write_early /early/copied $number
    done
    reports "$primary" '"write_cache": "copied from its memory"'
    before=$(counter "$primary" pulled_early)
    write_early /early/copied 7
    verify /messages/copied 7
    copied=$(($(counter "$primary" pulled_early) - before))
    echo "figure cluster: n$primary copied $copied parts of at most 64 KiB of a file of 512 KiB out of the memory of a mount"
    [ $copied -ge 4 ]
    echo "passed cluster: the primary copies early answered writes out of the memory of a mount over verbs"
}

# Whether the kernel registers memory that is mapped for loads only.
lends_memory() {
    case $(uname -r) in
        [1-5].* | 6.[01].*) return 1 ;;
    esac
}

# The kernel registers no memory that is mapped for loads only, so the third mount lends none.
early_writes_are_sent() {
    write_early /early/copied 7
    verify /messages/copied 7
    reports "$primary" '"write_cache": "in messages: the peer has lent no memory"'
    [ "$(counter "$primary" pulled_early)" = 0 ]
    echo "passed cluster: early answered writes are sent, since the kernel registers no memory for loads"
}

# Writes a file by calls of 64 KiB, the longest that are answered early.
write_early() {
    contents "$2" >/tmp/contents
    dd if=/tmp/contents of="$1" bs=65536 conv=fsync 2>/dev/null
}

# Writes and reads files with the first mount, which announces its requests, and whether the primary counts them.
requests_are_announced() {
    local number
    await reports "$primary" '"requests": "announced"'
    before=$(counter "$primary" announced)
    for number in 1 2 3 4 5; do
        write /messages/announced $number
        verify /messages/announced $number
    done
    exceeds "$primary" announced $((before + 10))
    echo "figure cluster: n$primary got $(counter "$primary" announced) announced messages"
    echo "passed cluster: a mount announces its requests over verbs"
}

# As `write`, but all of it by one call: from a pipe a call may get less.
write_at_once() {
    contents "$2" >/tmp/contents
    dd if=/tmp/contents of="$1" bs=$length conv=fsync 2>/dev/null
}

# Bytes of files that the primary has had in messages.
moved() {
    echo $(($(nc "10.0.0.$primary" 97 | sed -n 's/.*"\(read\|written\)": \([0-9]*\).*/\2 +/p') 0))
}

# Writes with the second mount until nothing of a file came in messages, and reads until at most half of one did: keys, grants
# and layouts come with what goes in messages before. The kernel's first read of a file is shorter than half of these.
data_moves_one_sided() {
    local number=0 before length=131072
    until [ "${before:-}" = "$(moved)" ]; do
        number=$((number + 1))
        before=$(moved)
        write /onesided/$number $number
    done
    reports 2 '"exports": 1'
    reports 3 '"exports": 1'
    reports 1 '"exports": 0'
    grep 'a DAX file cannot be registered with rxe0: its pages may move; use a DAX device' /tmp/serve.log
    number=100
    before=-$length
    until [ "$(moved)" -le $((before + length / 2)) ]; do
        number=$((number + 1))
        write /messages/$number $number
        before=$(moved)
        verify /onesided/$number $number
    done
    echo "passed cluster: a client moves data one-sided over verbs"
}

goes_on_without_primary() {
    local first second third_writer before early leader other
    mkdir /messages/m /messages/o
    write_files /messages/m /tmp/m &
    first=$!
    write_files /onesided/o /tmp/o &
    second=$!
    write_files /early/e /tmp/e &
    third_writer=$!
    await has_lines /tmp/m 5
    await has_lines /tmp/o 5
    await has_lines /tmp/e 5
    before=$(($(count /tmp/m) + $(count /tmp/o)))
    early=$(count /tmp/e)
    echo reset | nc "10.0.0.$primary" 99
    await has_lines /tmp/m $((before + 5))
    await has_lines /tmp/o $((before + 5))
    await has_lines /tmp/e $((early + 5))
    await state "served by n[1$third]"
    reports 1 '"role": "down"'
    touch /tmp/stop
    wait $first
    wait $second
    wait $third_writer
    # The new primary has a group of its own.
    leader=1 other=$third
    if state "served by n$third"; then leader=$third other=1; fi
    ships_by_the_group "$leader" "$other"
    echo "passed cluster: the new primary ships by a group over verbs"
    if lends_memory; then
        until exceeds "$leader" pulled_early 0; do write_early /early/after 9; done
        echo "passed cluster: the new primary copies early answered writes, too"
    fi
    echo "figure cluster: $before files before the primary was lost, $(($(count /tmp/m) + $(count /tmp/o))) in all"
    verify_files /onesided/m /tmp/m
    verify_files /messages/o /tmp/o
    verify_files /messages/e /tmp/e
    echo "passed cluster: mounts go on without the primary, and nothing acknowledged is lost"
}

# No session is left, and both members have the same records.
members_are_idle() {
    { reports 1 '"sessions": 0' || reports "$third" '"sessions": 0'; } && [ "$(counter 1 tail)" = "$(counter "$third" tail)" ]
}

# Sends the pool of this node to the third one, which compares it with its own.
compare_members() {
    await members_are_idle
    echo compare | nc "10.0.0.$third" 99
    stop
    await send_pool
}

send_pool() {
    nc "10.0.0.$third" 98 <"$pool"
}

lead() {
    /lab/etcd --data-dir /tmp/etcd --listen-client-urls http://10.0.0.1:2379 \
        --advertise-client-urls http://10.0.0.1:2379 >/tmp/etcd.log 2>&1 &
    # If something fails, the others need not wait.
    trap 'for other in 2 3; do echo stop | nc -w 2 10.0.0.$other 99 || true; done' EXIT
    serve
    await state '3 of 3 members in sync'
    find_primary
    mkdir /messages /onesided /early
    /lab/tako mount -o keys=$keys,io=server,requests=announced "$source" /messages
    /lab/tako mount -o keys=$keys,io=client "$source" /onesided
    /lab/tako mount -o keys=$keys,io=server,ack=primary,cache=writeback "$source" /early
    all_choose_verbs
    ships_by_the_group "$primary" "1 $third"
    echo "passed cluster: the primary ships to both members by a group over verbs"
    long_messages_are_pulled
    early_writes_are_copied
    requests_are_announced
    data_moves_one_sided
    goes_on_without_primary
    umount /messages
    umount /onesided
    umount /early
    compare_members
}

follow() {
    local order
    serve
    order=$(nc -l -p 99)
    if [ "$order" = reset ]; then
        # To the lab, which waits for this, it ends as it should.
        echo "ended 0"
        echo b >/proc/sysrq-trigger
    fi
    stop
    if [ "$order" = compare ]; then
        # nc alone ends when its standard input does.
        nc -l -p 98 -e dd of=/tmp/other bs=64k
        /lab/compare-pools "$pool" /tmp/other
        echo "passed cluster: the pools of n1 and $node are the same"
    fi
}

# etcd looks it up.
echo 127.0.0.1 localhost >/etc/hosts
on_network
load fuse
persistent_memory
mount -t tmpfs none /tmp
export HOME=/tmp
touch /tmp/serve.log
tail -f /tmp/serve.log &
if [ "$guest" = 1 ]; then lead; else follow; fi
