"""Experiment 1, after MTFS: fio over I/O sizes, file sizes and nodes; Filebench; Redis over value sizes and clients."""

import os

import groups
from measure import fio, overwrite, redis
from personalities import CLIENTS, FILES, rate
from report import Results, beside, by_system, draw, in_turns, number, progress, size, span, table, with_costs, write
from systems import TAKO, Cluster, Pool

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLOCKS = [64, 128, 256, 512, KIB, 2 * KIB]
SMALL_BLOCKS = [64, 512, 2 * KIB]
LENGTHS = [2 * KIB, 64 * KIB, 2 * MIB, 64 * MIB]
NODES = [2, 4, 6]
SMALL_FILES = 200
VALUES = [2, 32, 512, 2 * KIB]
REDIS_CLIENTS = [1, 2, 4, 8, 16]
PERSONALITIES = ["fileserver", "webserver", "varmail"]
BOTH = [(length, 1) for length in VALUES] + [(2, clients) for clients in REDIS_CLIENTS[1:]]


def measure(systems, scale):
    two = systems.start(Cluster, "Tako, 2 data nodes, shm", scale.pool, "--data-nodes", 2, "--metadata-nodes", 1)
    every = systems.all(two)
    results = in_turns("I/O sizes", every, scale.rounds, lambda s: io_sizes(s, scale))
    in_turns("file sizes", every, scale.rounds, lambda s: file_sizes(s, scale), results)
    in_turns("small files", every, scale.rounds, lambda s: small_files(s, scale), results)
    in_turns("Filebench", every, scale.rounds, lambda s: personalities(s, scale), results)
    in_turns("Redis", every, scale.rounds, lambda s: redis_rates(s, scale), results)
    systems.stop(two)
    if scale.largest > LENGTHS[-1]:
        largest(systems, scale, results)
    return two, every, results, cluster_sizes(systems, scale), wire(scale)


def io_sizes(system, scale):
    for block in BLOCKS:
        def once():
            found = overwrite(system.directory, scale.seconds, block, scale.file)
            return found["operations"], found["bytes"], found["rate"]

        yield from with_costs(system, ("block", block), once)


def file_sizes(system, scale):
    for length in LENGTHS:
        if length <= scale.largest:
            yield ("file", length), overwrite(system.directory, scale.seconds, 2 * KIB, length)["rate"]


def small_files(system, scale):
    directory = f"{system.directory}/small"
    os.makedirs(directory, exist_ok=True)
    options = {"rw": "randwrite", "nrfiles": SMALL_FILES, "filesize": 2 * KIB, "size": SMALL_FILES * 2 * KIB, "overwrite": 1,
               "openfiles": SMALL_FILES, "file_service_type": "random"}  # fmt: skip
    for block in SMALL_BLOCKS:
        yield ("small", block), fio(directory, scale.seconds, bs=block, **options)["rate"]


def personalities(system, scale):
    for name in PERSONALITIES:
        yield name, rate(system.directory, name, scale.seconds)


def redis_rates(system, scale):
    yield from zip([("redis", *pair) for pair in BOTH], redis(system.directory, scale.seconds, BOTH))


def largest(systems, scale, results):
    """2 KiB writes over the largest file, in systems that are started for it one at a time, since memory is short."""
    room = f"{scale.largest + scale.largest // 4 >> 20}M"
    for system in [systems.tmpfs, systems.gluster, systems.moosefs]:
        large_file(system, scale, results, system.name)
    for kind, name, words in [(Pool, systems.pool.name, []), (Cluster, systems.three.name, ["--nodes", 3])]:
        system = systems.start(kind, name, room, *words)
        large_file(system, scale, results, name)
        systems.stop(system)


def large_file(system, scale, results, name):
    for _ in range(scale.rounds):
        progress(f"largest file: {name}")
        found = overwrite(system.directory, 2 * scale.seconds, 2 * KIB, scale.largest)
        results.add(("file", scale.largest), name, found["rate"])
    os.unlink(f"{system.directory}/over{scale.largest}")


def cluster_sizes(systems, scale):
    """Clusters of 2, 4 and 6 data nodes, with a metadata node each."""
    results = Results()
    for _ in range(scale.rounds):
        for count in NODES:
            progress(f"cluster of {count} data nodes")
            cluster = systems.start(Cluster, f"{count}", scale.pool_small, "--data-nodes", count, "--metadata-nodes", 1)
            for block in SMALL_BLOCKS:
                def once():
                    found = overwrite(cluster.directory, 2 * scale.seconds, block, 4 * MIB)
                    return found["operations"], found["bytes"], found["rate"]

                for row, value in with_costs(cluster, block, once):
                    results.add(row, cluster.name, value)
            systems.stop(cluster)
    return results


def wire(scale):
    """Bytes that the primary's host sends for each byte stored, and MiB/s: by replicas, by links and by a multicast group."""
    found = {}
    for replicas in (1, 2, 3):
        for mode in ("off", "on"):
            progress(f"wire bytes, {replicas} replicas, group {mode}")
            found[replicas, mode] = groups.measure(TAKO, replicas, mode, lambda cluster: cluster.write())
    return found


# ---- the document


def titled(kind, values, title):
    return [((kind, value), title(value)) for value in values]


def costs_table(results, every):
    """What one write of 2 KiB costs."""
    row = ("block", 2 * KIB)
    lines = []
    for system in every[1:]:
        figures = [results.median((row, side), system.name) for side in ("mount", "servers")]
        sent = [results.median((row, side), system.name) if system.sent_bytes() else None for side in ("client sends", "servers send")]
        lines.append([system.name, *figures, *sent])
    return table(["system", "mount CPU, µs a write", "servers CPU, µs a write", "client sends, bytes per byte", "between servers, bytes per byte"], lines)


def nodes_table(results):
    head = ["data nodes", *(f"{size(block)} writes/s" for block in SMALL_BLOCKS), "mount CPU, µs a 2 KiB write", "servers CPU, µs a 2 KiB write"]
    rows = [[str(count), *(results.median(block, str(count)) for block in SMALL_BLOCKS),
             *(results.median((2 * KIB, side), str(count)) for side in ("mount", "servers"))] for count in NODES]  # fmt: skip
    return table(head, rows)


def wire_table(found):
    rows = [[str(replicas), *(f"{found[replicas, mode][0]:.3f}" for mode in ("off", "on")), *(found[replicas, mode][1] for mode in ("off", "on"))]
            for replicas in (1, 2, 3)]  # fmt: skip
    return table(["replicas", "bytes sent per byte stored, links", "group", "MiB/s, links", "group"], rows)


def document(machine, systems, scale, two, every, results, sizes, sent):
    shm, pool, gluster = systems.three.name, systems.pool.name, systems.gluster.name
    columns = [(f"3 members / {peer.name}", beside(results, shm, [peer.name])) for peer in (systems.gluster, systems.moosefs)]
    columns.append(("3 members / one pool", beside(results, shm, [pool])))
    lengths = sorted({length for length in [*LENGTHS, scale.largest] if length <= scale.largest})
    blocks, files = titled("block", BLOCKS, size), titled("file", lengths, size)
    small = titled("small", SMALL_BLOCKS, size)
    values = [(("redis", value, 1), f"{size(value)}, 1 client") for value in VALUES]
    clients = [(("redis", 2, count), f"2 B, {count} client" + "s" * (count > 1)) for count in REDIS_CLIENTS]

    def against(rows, other):
        return span(results.ratio(row, shm, other) for row, _ in rows)

    flat = [sizes.median(2 * KIB, str(NODES[-1])) / sizes.median(2 * KIB, str(NODES[0]))]
    write("mtfs", machine, scale, two.name, [
        "MTFS, reproduced", """After reading this you know how many small random writes and Redis requests a second the compared systems execute, by size, by length of the
file and by number of nodes, and what a write costs in processor time and bytes on the wire, beside what the paper on MTFS (a file system
for persistent memory with RDMA multicast) reports.""",
        "## What differs from the seed", f"""- The seed has a metadata node and two data nodes with Optane memory, ConnectX-5 adapters and an InfiniBand switch. Here all processes share
  the processors of one machine; messages travel over shared memory, or over a veth pair for GlusterFS and MooseFS. More nodes make a cluster
  slower here, as they share processors: sender's processor time and bytes sent stand beside the rates.
- *{two.name}* is the seed's cluster: a metadata-only node besides. It never leads here, so the mount is not on the metadata node.
- The seed runs in the kernel; here every call passes FUSE. One pool of Tako takes the place of NOVA, which Linux 6 lacks.
- The seed gives the throughput of one node; here it is that of the mount.
- A write returns in Tako when the primary has it; in the seed when it is sent, in GlusterFS when all replicas have it in memory.""",
        "## Random writes by I/O size (fig. 6)", f"fio 3.33, psync, one job, `randwrite` over a file of {size(scale.file)}. Writes per second.",
        by_system(results, "I/O size", blocks, every, columns),
        draw("mtfs-io-size", "Random writes", "I/O size", "/s", results, every, [(b, ("block", b)) for b in BLOCKS], size),
        f"""Three members over shared memory execute {against(blocks, gluster)} times the writes of GlusterFS, {against(blocks, systems.moosefs.name)} times those of MooseFS and {against(blocks, pool)} of one
pool. The seed: 10.2 to 219 times GlusterFS over all its experiments; the values of figure 6 itself are not in the text.

One write of 2 KiB costs (wire bytes of fio's run, requests and replies of the veth pair included; Tako's members over tcp send to each
other on the servers' loopback, as GlusterFS's and MooseFS's servers do):""",
        costs_table(results, every),
        "## Random writes by file size (fig. 7)", f"2 KiB writes over files of 2 KiB to {size(scale.largest)}. The seed goes to 2 GiB."
        + (" Of that length, systems are measured one after the other, in rounds of the same system, as memory does not hold all; Tako over tcp and two data nodes are left out."
           if scale.largest > LENGTHS[-1] else ""),
        by_system(results, "file size", files, every, columns),
        draw("mtfs-file-size", "2 KiB random writes", "file size", "/s", results, every, [(n, ("file", n)) for n in lengths], size),
        f"""The seed is 145 times GlusterFS at 2 KB and 10.2 times at 2 GB; here {number(results.ratio(("file", lengths[0]), shm, gluster))} at {size(lengths[0])} and
{number(results.ratio(("file", lengths[-1]), shm, gluster))} at {size(lengths[-1])}.""",
        "## Number of nodes (fig. 8)", f"""Clusters of {", ".join(map(str, NODES))} data nodes and a metadata node over shared memory; all data nodes hold the same files, where the seed forms units of
two. Writes over a file of 4 MiB.""",
        nodes_table(sizes),
        f"""From {NODES[0]} to {NODES[-1]} data nodes the rate of 2 KiB writes changes by a factor of {number(flat[0])}; the seed's stays flat. On two processors it cannot. What can be shown is
what the sender sends: one round, 64 MiB in writes of 1 MiB with one fsync, by separate links and by one multicast group, between hosts
that are network namespaces ([more](../performance/groups.md)):""",
        wire_table(sent),
        "## Filebench (fig. 9)", f"""Filebench is not in Debian 12. Its *randomwrite* is reproduced by fio: {SMALL_FILES} files of 2 KiB, all open, chosen at random. Writes per second.""",
        by_system(results, "I/O size", small, every, columns),
        f"""The seed: 13.7 to 219 times GlusterFS, 11 % more than NOVA at 2 KiB. Here: {against(small, gluster)} times GlusterFS, {against(small, pool)} of one pool.

Three more personalities by a generator of our own (`scripts/experiments/personalities.py`): {CLIENTS} processes with {FILES} files each make the
calls of *fileserver* (create and write 128 KiB on average, append 16 KiB, read, delete, stat), *webserver* (ten reads of 16 KiB, one append
to a log) and *varmail* (delete; create, append, fsync; read, append, fsync; read). Calls per second.""",
        by_system(results, "personality", [(name, name) for name in PERSONALITIES], every, columns),
        "## Redis, log synced at each change, by value size (fig. 10)", "`redis-benchmark -t set`, one client, `appendfsync always`. Requests per second.",
        by_system(results, "value", values, every, columns),
        draw("mtfs-redis-size", "Redis SET, AOF always", "value size", "/s", results, every, [(v, ("redis", v, 1)) for v in VALUES], size),
        f"""The seed: 25.5 to 42.1 times GlusterFS, up to 10.7 % more than NOVA. Here: {against(values, gluster)} times GlusterFS, {against(values, pool)} of one pool. Redis
itself bounds the ratio: on tmpfs it is {span(results.ratio(row, systems.tmpfs.name, gluster) for row, _ in values)} times GlusterFS.""",
        "## Redis by clients (fig. 11)", "The same with values of 2 B. The seed varies threads; redis-server executes commands in one thread, so clients are varied here.",
        by_system(results, "clients", clients, every, columns),
        draw("mtfs-redis-clients", "Redis SET of 2 B, AOF always", "clients", "/s", results, every, [(c, ("redis", 2, c)) for c in REDIS_CLIENTS]),
    ])  # fmt: skip


def experiment(machine, systems, scale):
    document(machine, systems, scale, *measure(systems, scale))
