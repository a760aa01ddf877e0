#!/usr/bin/env bash
# Tests in guests that QEMU emulates, with what this machine lacks: RDMA (in software, rdma_rxe) and persistent memory.
# `lab.sh SCENE...` runs only these. Prints what failed, with its logs in target/lab/failed, and how many passed.
# Needs no device of this machine's, and leaves nothing running, however it ends.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

# Each scene, how many guests it takes, and how many seconds at most.
readonly scenes="alone:1:300 fabric:1:300 joined:3:200 sessions:3:200 cluster:3:240 dax:1:60 card:2:100"
# Those that are run only if they are named: they measure, and test nothing. In `counted` and `rzcfs` the guest's clock counts
# instructions, one a nanosecond, so that nothing else on this machine changes a figure.
readonly figures="measure:1:300 counted:1:300 ways:1:400 rzcfs:1:900"
lab=$(realpath -m "${CARGO_TARGET_DIR:-target}")/lab
readonly lab run=$lab/run.$$
# What the guests run: programs of the crates `conformance` and `lab`, in /lab.
programs=(verbs-guest fabric-guest card-guest compare-pools)
profile=tests
# What is measured is the program as it is released.
[[ ! " $* " =~ \ (measure|counted|ways|rzcfs)\  ]] || profile=release
readonly programs profile built=${lab%/lab}/$profile tako=${lab%/lab}/$profile/tako
guests=()

fail() {
    echo "lab.sh: $1" >&2
    exit 1
}

clean_up() {
    trap - EXIT
    end_guests
    rm -rf "$run"
}

end_guests() {
    local guest
    for guest in "${guests[@]}"; do
        kill -9 "$guest" 2>/dev/null || true
        wait "$guest" 2>/dev/null || true
    done
    guests=()
}

# What runs left behind that were killed.
sweep() {
    local left
    for left in "$lab"/run.*; do
        [ ! -d "$left" ] || [ -d "/proc/${left##*.}" ] || rm -rf "$left"
    done
}

# Starts guest $2 of scene $1. The guests of a run are on a network of their own, which is a multicast group of this machine's
# loopback device; QEMU ends with this script.
boot() {
    local group number words="scene=$1 guest=$2" modules=() cable=() processor=(-accel "tcg,thread=multi")
    [ "$1" != counted ] && [ "$1" != rzcfs ] || processor=(-accel "tcg,thread=single" -icount "shift=0,sleep=off")
    # Each of two sides polls.
    [ "$1" != ways ] || processor+=(-smp 2)
    # Files without blocks: what is written to them is a few megabytes.
    for number in 0 1; do
        truncate -s 64M "$run/$1.$2.$number"
        modules+=(-object "memory-backend-file,id=m$number,share=on,mem-path=$run/$1.$2.$number,size=64M"
            -device "nvdimm,memdev=m$number")
    done
    if [ "$1" = card ]; then
        # A cable: each guest's end is a socket that the other one sends to.
        cable=(-netdev "dgram,id=cable,local.type=unix,local.path=$run/cable.$2,remote.type=unix,remote.path=$run/cable.$((3 - $2))")
        case $2 in
            1)
                words+=" intel_iommu=on"
                cable+=(-device "intel-iommu,intremap=on,caching-mode=on"
                    -device "e1000e,netdev=cable,addr=5,mac=52:54:00:00:01:01,romfile=")
                ;;
            2) cable+=(-device "virtio-net-pci,netdev=cable,addr=5,mac=52:54:00:00:01:02,romfile=") ;;
        esac
    fi
    group=239.$(($$ >> 16 & 255)).$(($$ >> 8 & 255)).$(($$ & 255)):18515
    # QEMU reports what the IOMMU refuses to the adapter of a killed process.
    setpriv --pdeathsig KILL qemu-system-x86_64 "${processor[@]}" -cpu max -machine q35,nvdimm=on \
        -m 768M,slots=2,maxmem=2G "${modules[@]}" -nodefaults -nographic -no-reboot -serial "file:$run/$1.$2.log" \
        -netdev "socket,id=net,mcast=$group,localaddr=127.0.0.1" \
        "${cable[@]}" -device "virtio-net-pci,netdev=net,addr=4,mac=52:54:00:00:00:0$2,romfile=" \
        -kernel "$lab/vmlinux" -initrd "$run/guest.cpio" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check $words" \
        2> >(grep -v "vtd_\|compression of faults" >&2) &
    guests+=($!)
}

# Runs scene $1 with $2 guests for at most $3 seconds, and counts what the guests say.
run_scene() {
    local guest log passes failures ended how
    local deadline=$((SECONDS + $3))
    for ((guest = 1; guest <= $2; guest++)); do
        boot "$1" "$guest"
    done
    for guest in "${guests[@]}"; do
        # In the background, since a signal would have to wait for the end of what is not.
        timeout "$((deadline > SECONDS ? deadline - SECONDS : 1))" tail -s 0.1 --pid="$guest" -f /dev/null &
        wait $! || true
    done
    end_guests
    for ((guest = 1; guest <= $2; guest++)); do
        log=$run/$1.$guest.log
        # The console's ends of lines, and what the firmware says with colours.
        tr -cd '\n\t -~' <"$log" >"$run/log"
        mv "$run/log" "$log"
        passes=$(grep -c '^passed ' "$log" || true)
        failures=$(grep -c '^failed ' "$log" || true)
        ended=$(sed -n 's/^ended //p' "$log" | tail -n 1)
        how="did not end within $3 s"
        [ -z "$ended" ] || how="ended with $ended"
        if [ "$ended" != 0 ] && [ "$failures" = 0 ]; then
            echo "failed $1: guest $guest $how" | tee -a "$log"
            failures=1
        else
            sed -n "s/^failed /failed $1: guest $guest: /p; s/^figure //p" "$log"
        fi
        passed=$((passed + passes))
        failed=$((failed + failures))
        [ "$failures" = 0 ] || mkdir -p "$lab/failed"
        [ "$failures" = 0 ] || cp "$run/$1".*.log "$lab/failed/"
    done
}

# The structures and numbers of the crate `verbs` are those of the C headers.
check_headers() {
    "$built/verbs-guest" assertions >"$run/assertions.c"
    cc -fsyntax-only -I "$lab/unpacked/usr/include" "$run/assertions.c" 2>"$run/headers.log" ||
        fail "the crate verbs and the headers of libibverbs disagree: $(head -n 5 "$run/headers.log")"
    passed=$((passed + 1))
}

trap clean_up EXIT
trap 'exit 1' INT TERM HUP
wanted=" $* "
for name in "$@"; do
    [[ " $scenes $figures" == *" $name:"* ]] || fail "there is no scene $name; this file names those that are"
done
scripts/lab/image.sh
sweep
rm -rf "$lab/failed"
mkdir -p "$run"
cargo build -q --profile "$profile" "${programs[@]/#/--bin=}" --bin=tako
passed=0 failed=0
check_headers
"$built/fabric-guest" keys "$run/keys"
"$tako" keys init "$run/nodes" n1 >"$run/keys.log"
for name in n2 n3 client; do
    "$tako" keys issue "$run/nodes" "$name" >>"$run/keys.log"
done
cc -O2 -o "$run/blocks" scripts/lab/guest/blocks.c
scripts/lab/image.sh add "$run/programs.cpio" "$run/blocks" "${programs[@]/#/$built/}" "$tako" "$(command -v etcd)" "$run/keys" "$run/nodes"
cat "$lab/base.cpio" "$run/programs.cpio" >"$run/guest.cpio"
[ $# = 0 ] || scenes_to_run="$scenes $figures"
for scene in ${scenes_to_run:-$scenes}; do
    IFS=: read -r name count seconds <<<"$scene"
    [ $# = 0 ] || [[ $wanted == *" $name "* ]] || continue
    run_scene "$name" "$count" "$seconds"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] || fail "the logs of what failed are in $lab/failed"
