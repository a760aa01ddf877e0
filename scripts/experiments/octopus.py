"""Experiment 3, after Octopus: where the time of a call goes, latency by size, bandwidth beside raw, metadata rates."""

from measure import CALLS, calls, fio, latencies, transports
from report import beside, by_system, draw, in_turns, number, progress, size, span, table, with_costs, write
from systems import Cluster

KIB, MIB = 1 << 10, 1 << 20
WRITES, READS = [64, KIB, 16 * KIB, 64 * KIB, MIB], [4 * KIB, 64 * KIB, MIB]
CLIENTS, NODES = [1, 2, 4], [1, 2, 3, 4, 5]
BROKEN_DOWN = {"write and fsync": 2, "getattr": 1, "readdir": 1}


def measure(systems, scale):
    two = systems.start(Cluster, "Tako, 2 members, shm", scale.pool, "--nodes", 2)
    every = systems.all(two)
    results = in_turns("latency", every, scale.rounds, lambda s: latencies(s.directory, scale.seconds).items())
    in_turns("latency by size", every, scale.rounds, lambda s: by_size(s, scale), results)
    in_turns("bandwidth", every, scale.rounds, lambda s: bandwidth(s, scale), results)
    in_turns("metadata", every, scale.rounds, lambda s: metadata(s, scale), results)
    systems.stop(two)
    scaling(systems, scale, results)
    progress("raw transports")
    raw = transports("tcp ping") | transports("shm ping") | transports("one-sided")
    return two, every, results, raw


def by_size(system, scale):
    for block in WRITES:
        found = fio(system.directory, scale.seconds, rw="randwrite", bs=block, filename="sized", size=scale.file, overwrite=1, fsync=1)
        yield ("write", block), found["latency"]
    for block in READS:
        found = fio(system.directory, scale.seconds, rw="randread", bs=block, filename="sized", size=scale.file, direct=1)
        yield ("read", block), found["latency"]


def bandwidth(system, scale):
    """One pass of 1 MiB requests: data arrives before the time ends, and reads find nothing in the page cache."""
    options = {"bs": "1m", "filename": "sequential", "size": scale.sequential}
    yield "write", fio(system.directory, rw="write", end_fsync=1, overwrite=1, **options)["bandwidth"] / 1e6
    yield "read", fio(system.directory, rw="read", invalidate=1, **options)["bandwidth"] / 1e6


def metadata(system, scale):
    for clients in CLIENTS:
        for call, rate in calls(system.directory, clients, scale.seconds / 3).items():
            yield (call, clients), rate


def scaling(systems, scale, results):
    """Rates of two clients over 1 to 5 members, and what a getattr costs."""
    for _ in range(scale.rounds):
        for count in NODES:
            progress(f"metadata, {count} members")
            cluster = systems.start(Cluster, f"{count} members", scale.pool, "--nodes", count)
            for call, rate in calls(cluster.directory, 2, scale.seconds / 3).items():
                results.add(call, cluster.name, rate)
            counted = with_costs(cluster, "cost", lambda: reads(cluster, scale))
            for row, value in counted:
                results.add(row, cluster.name, value)
            systems.stop(cluster)


def reads(cluster, scale):
    """4 KiB reads past the page cache: requests that the primary answers."""
    options = {"rw": "randread", "bs": "4k", "filename": "read", "size": MIB, "direct": 1}
    found = fio(cluster.directory, scale.seconds * 2, **options)
    return found["operations"], found["bytes"], found["rate"]


# ---- the document


def breakdown(every, results, raw):
    """Lines of: the call, the system, its time, and the parts."""
    shm, tcp = raw["shm ping, both sleeping"][1] / 1e3, raw["tcp ping, both sleeping"][1] / 1e3
    memory = 1024 / (MIB / (raw["shm one-sided write, 1 MiB"][1] / 1e3))
    rows = []
    for call, trips in BROKEN_DOWN.items():
        for system in every:
            total = results.median(call, system.name)
            network = trips * (0 if "shm" not in system.name and not system.sent_bytes() else shm if "shm" in system.name else tcp)
            copies = memory * (2 if network else 1) if call.startswith("write") else 0
            software = max(0.0, total - network - copies)
            rows.append([call, system.name, total, network, f"{copies:.3f}", software, f"{100 * software / total:.0f} %"])
    return table(["call", "system", "µs", "network", "memory", "software", "share of software"], rows)


def utilization(every, results, raw):
    memory = 1e3 * MIB / raw["shm one-sided write, 1 MiB"][1]
    network = raw["tcp one-sided write, 1 MiB"][1] / 1e6
    rows = []
    for system in every:
        limit = network if system.sent_bytes() else memory
        row = [system.name, *(results.median(way, system.name) for way in ("write", "read"))]
        rows.append([*row, limit, *(f"{100 * results.median(way, system.name) / limit:.0f} %" for way in ("write", "read"))])
    text = f"Raw, in the same run: a copy in memory {number(memory)} MB/s, one TCP connection {number(network)} MB/s."
    return text + "\n\n" + table(["system", "write, MB/s", "read, MB/s", "raw, MB/s", "write of raw", "read of raw"], rows)


def scaling_table(results):
    names = [f"{count} members" for count in NODES]
    head = ["members", *(f"{call}/s" for call in CALLS), "4 KiB reads/s", "mount CPU, µs a read", "servers CPU, µs a read"]
    rows = [[name.split()[0], *(results.median(call, name) for call in CALLS), results.median("cost", name),
             results.median(("cost", "mount"), name), results.median(("cost", "servers"), name)] for name in names]  # fmt: skip
    return table(head, rows)


def document(machine, systems, scale, two, every, results, raw):
    shm, peers = systems.three.name, systems.peers
    latency = [((way, block), f"{size(block)} {'write, fsync' if way == 'write' else 'read, O_DIRECT'}")
               for way, blocks in (("write", WRITES), ("read", READS)) for block in blocks]  # fmt: skip
    slower = [("3 members, shm / faster peer", beside(results, shm, peers, min))]
    faster = [("3 members, shm / faster peer", beside(results, shm, peers))]
    rates = [((call, clients), f"{call}, {clients} client" + "s" * (clients > 1)) for call in CALLS for clients in CLIENTS]
    named = {name: results.median(name, shm) for name in BROKEN_DOWN}
    gluster = {name: results.median(name, systems.gluster.name) for name in BROKEN_DOWN}
    gains = [gluster[name] / named[name] for name in BROKEN_DOWN]
    wins = sum(results.ratio(row, shm, results.best(row, peers)) > 1 for row, _ in rates)
    growth = [results.median(call, "5 members") / results.median(call, "1 members") for call in ("mknod", "getattr", "unlink")]
    write("octopus", machine, scale, two.name, [
        "Octopus, reproduced", f"""After reading this you know how the latency of a call splits into software, memory and network, which part of the raw bandwidth files
reach, and how many metadata calls a second the compared systems execute, beside what *Octopus: an RDMA-enabled Distributed Persistent
Memory File System* reports.""",
        "## What differs from the seed", """- The seed has 5 servers and 7 clients with 56 Gb/s InfiniBand. Here all processes share the processors of one machine; messages
  travel over shared memory or a veth pair. Rates therefore cannot grow with nodes; processor time per operation stands beside them.
- The seed's clients call a library. Here every call enters the kernel and leaves it through FUSE.
- One unit: members hold the same files. The seed distributes names over its nodes by hash (row O5, missing).
- Requests are generated by fio 3.33 and by forked Python processes, with a cost per call of their own, of which the tmpfs column shows an upper bound.""",
        "## Where the time of a call goes", f"""One process; medians. Write: 1 KB with pwrite, then fsync. getattr: statx with `AT_STATX_FORCE_SYNC`. readdir: 100 entries, opened, read
and closed; kernels may answer it from a cache. *Network* is one raw round trip of the same run for each call that reaches a server (write
and fsync: two), both sides blocking: {number(raw["shm ping, both sleeping"][1] / 1e3)} µs by words and futexes in shared memory, {number(raw["tcp ping, both sleeping"][1] / 1e3)} µs by a TCP socket. It is not measured inside the
call: where a cache answers, the network share is too high. *Memory* is the copy of the data at the speed of memcpy, once per replica.
*Software* is the rest, with FUSE and the scheduler. tmpfs has no network; so has the single pool.""",
        breakdown(every, results, raw),
        f"""Three members over shared memory take {span(1 / gain for gain in gains)} of the time of GlusterFS. The seed: GlusterFS on memory and RDMA takes 324 µs
for 1 KB write and sync, 99.7 % of it software (on disk and GigE 18 ms, 98 % disk); Octopus reduces the software latency of getattr and readdir
from 326 to 6 µs ({number(326 / 6)}×).""",
        "## Latency by size", f"""Mean µs by fio (psync, one job) on a file of {size(scale.file)}; a write and its fsync together.""",
        by_system(results, "µs", latency, every, slower),
        draw("octopus-write", "Write and fsync", "length of the write", "s", results, every,
             [(block, ("write", block)) for block in WRITES], size, 1e-6),
        "## Bandwidth", f"""fio, requests of 1 MiB, one pass over {size(scale.sequential)}. Writes end with fsync; reads find nothing in the page cache. The limit is raw
memory for systems of this host, and raw TCP for those in two namespaces. A replicated write sends or stores all data twice or three
times over the same two processors.""",
        utilization(every, results, raw),
        """The seed, writes of 1 MB: GlusterFS on memory and RDMA 1,779 MB/s, 27 % of raw (memory 6,509, network 6,350 MB/s); on disk and GigE 83
MB/s, 94 % (disk 88, network 118). Octopus comes close to raw for reads and writes.""",
        "## Metadata", f"""Calls per second of 1, 2 and 4 clients, each a process in its own directory. Create: open with `O_CREAT`, and close.
getattr passes the kernel's cache; GlusterFS's mount answers it from a cache of its own for a second.""",
        by_system(results, "calls/s", rates, every, faster),
        draw("octopus-metadata", "getattr", "clients", "/s", results, every, [(clients, ("getattr", clients)) for clients in CLIENTS]),
        f"""In {wins} of {len(rates)} rows three members over shared memory execute more calls than the faster peer. The seed: 10⁵ to 10⁶ calls per second, linear
over 1 to 5 nodes.""",
        "## One to five members", """Two clients on clusters of 1 to 5 members over shared memory. All members hold all metadata, so each further member costs work for every
change; the seed's nodes share it.""",
        scaling_table(results),
        f"""From one to five members the rates of mknod, getattr and unlink change by factors of {", ".join(number(g) for g in growth)}.""",
        "## Copies", """The seed counts 7 copies of data between program and storage for GlusterFS, 6 with DAX, and 4 for Octopus. Those of Tako are
[counted](../CLUSTERS.md#copies-of-a-request) by a test.""",
    ])  # fmt: skip


def experiment(machine, systems, scale):
    document(machine, systems, scale, *measure(systems, scale))
