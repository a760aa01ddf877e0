"""Experiment 2, after RZCFS: blocks of a remote file by system calls and through a mapping, over NFS and over Ethernet frames."""

import shutil

from report import ROOT, Results, by_system, draw, number, progress, size, span, table, write_with
from systems import System, run

NFS, TCP, MESSAGES, ONE_COPY, ZERO_COPY = SYSTEMS = ["NFS", "Tako, TCP", "Tako, messages", "Tako, one-copy", "Tako, zero-copy"]
WAYS = [f"{access}, {pattern} {way}" for access in ("calls", "mapping") for pattern in ("sequential", "random") for way in ("read", "write")]
COSTS = ["time", "processor", "faults", "switches"]

COMPARED = """- **NFS**: version 4.2 of the kernel (Debian, Linux 6.1), `async`, four threads, on an ext4 file system without journal on a RAM disk.
- **Tako, TCP**: one node, mounted over TCP; file data in messages.
- **Tako, messages**: the same over Ethernet frames of 1514 bytes.
- **Tako, one-copy**: the same with `io=client`: data is read and written one-sided, and the receiving process copies it out of frames.
- **Tako, zero-copy**: the same with `data_queue`: the kernel puts blocks of writes into the pool itself, and those of long reads into the
  client's buffers, by header strip.

Client and server are two network namespaces of one emulated guest with one processor, joined by a veth pair, one after the other.
Packets of Tako are authenticated; NFS uses `sec=sys`, without any authentication of packets. NFS keeps written data in the client's
page cache until fsync. A write by a call to Tako is in the pool when it returns."""

METHOD = """- The seed runs on two boards with an ARM Cortex-A9 of 667 MHz and a gigabit Ethernet card that places blocks by DMA. Here the card is a veth
  pair: the kernel copies each frame once on each side, also in zero-copy.
- The guest's clock counts instructions of both hosts together, one a nanosecond (QEMU, `-icount`). So no other load changes a figure, and a
  figure is processor time as well. It counts no cache misses and overlaps nothing; all code that polls while it waits is counted as work.
- In place of IOzone a program of 150 lines (`scripts/lab/guest/blocks.c`) makes the same accesses: a file of 16 MiB, blocks of 1 KiB to 16 MiB, at most
  128 of them and 4 MiB, but one at least. Reads find nothing of the file in the page cache; writes end with fsync or msync. Sequential writes by calls make the file.
- Both clients use the page cache and read ahead. A fault in a mapping reads up to 128 KiB around it on either system. The seed maps
  remote blocks directly, without a page cache. Tako does not do this yet."""

COPIES = """- The seed counts six copies over NFS, one in a remote read of RZCFS and none in a write.
- Tako on an Ethernet card with a driver for AF_XDP without a copy: a placed write or read has no copy by its receiver and one by its
  sender's process, besides those from the program to the mount ([all copies](../CLUSTERS.md#copies-of-a-request)). Other transfers have one more
  by the receiver. A veth pair adds one copy by the kernel on each side."""


def experiment(machine):
    if not shutil.which("qemu-system-x86_64"):
        raise RuntimeError("qemu-system-x86_64 is missing; run `scripts/install.sh lab`")
    progress("guest with NFS and Tako")
    results = parsed(run(ROOT / "scripts/lab.sh", "rzcfs", cwd=ROOT, timeout=3600))
    document(machine, results)


def parsed(text):
    """Figures for one block: by cost, way and block size."""
    results = Results()
    for line in text.splitlines():
        words = line.split("; ")
        if words[0] != "rzcfs":
            continue
        _, system, way, block, count, *costs = words
        for cost, value in zip(COSTS, costs):
            factor = 1000 if cost in ("time", "processor") else 1
            results.add((cost, way, int(block)), system, float(value) / int(count) / factor)
    if not results.figures:
        raise RuntimeError("the guest reported no figures; read the logs that `scripts/lab.sh rzcfs` names")
    return results


# ---- the document


def ratios(results, way, numerator, denominator):
    sizes = blocks(results)
    return [results.ratio(("time", way, block), numerator, denominator) for block in sizes]


def blocks(results):
    return sorted({row[2] for row, _ in results.figures})


def by_size(results, way, systems):
    rows = [(("time", way, block), size(block)) for block in blocks(results)]
    gain = [("NFS / zero-copy", lambda row: results.ratio(row, NFS, ZERO_COPY)), ("one-copy / zero-copy", lambda row: results.ratio(row, ONE_COPY, ZERO_COPY))]
    return by_system(results, way, rows, systems, gain)


def costs_table(results):
    """What an access of 1 KiB and of 64 KiB costs besides time."""
    rows = [[f"{way}, {size(block)}", *(results.median((cost, way, block), system) for cost in ("faults", "switches") for system in (NFS, MESSAGES, ZERO_COPY))]
            for way in WAYS for block in (1 << 10, 1 << 16)]  # fmt: skip
    head = ["a block", *(f"{what}, {system}" for what in ("faults", "switches") for system in (NFS, MESSAGES, ZERO_COPY))]
    return table(head, rows)


def gains(results, access):
    found = {way: span(ratios(results, f"{access}, {way}", NFS, ZERO_COPY)) for way in ("sequential read", "sequential write", "random read", "random write")}
    return ", ".join(f"{way} {times}" for way, times in found.items())


def why(results):
    switches = results.median(("switches", "calls, random read", 1 << 16), MESSAGES)
    times = span(ratios(results, "calls, random read", TCP, NFS))
    frames = span(ratios(results, "calls, random read", MESSAGES, TCP))
    return f"""The seed's lead over NFS is not reproduced. Over TCP Tako takes {times} times as long as NFS in random reads by calls: its requests pass
through FUSE and a process on either side, while NFS is in the kernel on both. Over frames it takes {frames} times as long as over TCP. A read of
64 KiB is 47 frames and {number(switches)} context switches: client and server share one processor, and the receiver of frames runs after almost each of them.
Both sides also hash each frame (keyed BLAKE3), and the process copies what is not placed."""


def document(machine, results):
    systems = [System(name, "") for name in SYSTEMS]
    points = [(block, ("time", "calls, random write", block)) for block in blocks(results)]
    copies = [number(value) for way in ("calls, random read", "calls, random write") for value in [max(ratios(results, way, ONE_COPY, ZERO_COPY))]]
    write_with(COMPARED, "rzcfs", machine, [], [
        "RZCFS, reproduced", """After reading this you know what reading and writing blocks of a remote file costs over NFS and over Tako's Ethernet frames, and how that
compares with what the paper on RZCFS reports.""",
        "## What differs from the seed", METHOD,
        "## Time of a block (figs. 7 and 8)", "µs of one block, of both hosts together. Throughput is the block size divided by it.",
        *(by_size(results, way, systems) for way in WAYS),
        draw("rzcfs-write", "Random write by calls, µs a block", "block size", "µs", results, systems, points, size),
        f"""NFS took this many times as long as Tako with zero-copy: by calls, {gains(results, "calls")}; through a mapping, {gains(results, "mapping")}. The
seed: by calls, sequential read 3.68 to 63.95, sequential write 2.43 to 46.86, random read 3.61 to 90.07, random write 5.74 to 86.41; through a mapping with
1 KiB, random read 996, random write 1297.""",
        f"""One-copy took up to {copies[0]} times as long as zero-copy in random reads and {copies[1]} in random writes by calls. The seed: 1.54 to 1.87.""",
        "## Where the time goes", why(results),
        "## Page faults and context switches (fig. 10)", "In place of the seed's cycles and cache misses, for each block, of all processes.", costs_table(results),
        "## Copies of a block", COPIES,
    ])  # fmt: skip
