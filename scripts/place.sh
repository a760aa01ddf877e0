# shellcheck shell=bash
# Where scripts put what they work on; sourced, with `bytes_needed` set.

# A directory with room: memory if there is enough, else a disk.
choose_parent() {
    local available
    available=$(df --output=avail -B1 /dev/shm 2>/dev/null | tail -n 1)
    if [ -w /dev/shm ] && [ "${available:-0}" -ge "$bytes_needed" ]; then
        echo /dev/shm
    else
        echo "${TMPDIR:-/tmp}"
    fi
}
