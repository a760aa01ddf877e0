"""Experiment 5, after RBP: sequential transfers of several processes and of several clients, one-sided beside messages."""

from measure import fio, transports
from report import beside, by_system, draw, in_turns, number, progress, size, span, table, write
from systems import Cluster, System

KIB, MIB = 1 << 10, 1 << 20
PROCESSES = [1, 2, 4, 8]
TRANSFERS = [64 * KIB, MIB, 4 * MIB]
ONE_SIDED, BY_MESSAGE = "Tako, 1 server, io=client", "Tako, 1 server, io=server"


class SecondMount(System):
    """Another mount of a cluster, with one side that moves the data of files."""

    def __init__(self, cluster, io):
        super().__init__(f"3 members, shm, {io}", cluster.another(0, io))


def measure(systems, scale):
    two = systems.start(Cluster, "Tako, 2 members, shm", scale.pool, "--nodes", 2)
    every = systems.all(two)
    every[4:4] = [SecondMount(systems.three, io) for io in ("io=client", "io=server")]
    results = in_turns("one client", every, scale.rounds, lambda s: one_client(s, scale))
    systems.stop(two)
    served = systems.start(Cluster, "one", scale.pool, "--nodes", 1)
    many = in_turns("four clients", four_mounts(systems, served), scale.rounds, lambda s: four_clients(s, scale))
    systems.stop(served)
    progress("ways of a payload")
    ways = transports("ways of a payload") | transports("one-sided")
    return two, every, results, many, ways


def sequential(directories, way, transfer, processes, scale):
    """MB/s of all processes together, with a file each. Writes end with fsync; reads find nothing in the page cache."""
    length = max(scale.sequential // processes // len(listed(directories)), 4 * transfer if scale.quick else 0, transfer)
    options = {"end_fsync": 1, "overwrite": 1} if way == "write" else {"invalidate": 1}
    return fio(directories, rw=way, bs=transfer, size=length, numjobs=processes, **options)["bandwidth"] / 1e6


def listed(directories):
    return [directories] if isinstance(directories, str) else directories


def one_client(system, scale):
    for processes, transfer in [(n, MIB) for n in PROCESSES] + [(1, transfer) for transfer in TRANSFERS if transfer != MIB]:
        for way in ("write", "read"):
            yield (way, processes, transfer), sequential(system.directory, way, transfer, processes, scale)


class Mounts(System):
    """Four mounts of one file system."""

    def __init__(self, name, directories):
        super().__init__(name, directories[0])
        self.directories = directories


def four_mounts(systems, served):
    return [Mounts(BY_MESSAGE, [served.another(n, "io=server") for n in range(4)]),
            Mounts(ONE_SIDED, [served.another(n, "io=client") for n in range(4)]),
            *(Mounts(peer.name, [peer.directory, *(peer.another(n, "") for n in range(1, 4))]) for peer in
              (systems.tcp, systems.gluster, systems.moosefs))]  # fmt: skip


def four_clients(mounts, scale):
    for way in ("write", "read"):
        yield way, sequential(mounts.directories, way, MIB, 1, scale)


# ---- the document


def ways_table(ways):
    rows = [[name.removeprefix("ways of a payload: "), number(tako / 1e3), limit_name, number(limit / 1e3), f"{limit / tako:.2f}"]
            for name, (tako, limit, limit_name) in ways.items() if "one-sided" not in name]  # fmt: skip
    return table(["what", "µs", "beside", "µs", "times as fast"], rows)


def document(machine, systems, scale, two, every, results, many, ways):
    client, server = every[4].name, every[5].name
    gain = [("io=client / io=server", beside(results, client, [server])),
            ("3 members / faster peer", beside(results, systems.three.name, systems.peers))]  # fmt: skip

    def rows(way, pairs):
        return [((way, n, transfer), title) for n, transfer, title in pairs]

    by_processes = [(n, MIB, f"{n}") for n in PROCESSES]
    by_transfer = [(1, transfer, size(transfer)) for transfer in TRANSFERS]
    gains = {way: [results.ratio((way, n, MIB), client, server) for n in PROCESSES] for way in ("read", "write")}
    limit = 1e3 * MIB / ways["shm one-sided read, 1 MiB"][1]
    many_gain = [("io=client / io=server", beside(many, ONE_SIDED, [BY_MESSAGE]))]
    columns = [System(name, "") for name in dict.fromkeys(system for _, system in many.figures)]
    write("rbp", machine, scale, two.name, [
        "RBP, reproduced", """After reading this you know the sequential bandwidth of one client with 1 to 8 processes and of one server with four clients, with data in
messages and with data moved one-sided, beside what the paper on RBP (RDMA buffer pools for MooseFS) reports.""",
        "## What differs from the seed", """- The seed runs on TH-1A, with MooseFS over sockets before and over pools of registered RDMA buffers after its change. Here all processes
  share the processors of one machine. `io=server` sends file data in messages; `io=client` moves it one-sided over shared memory, where the
  client reaches the pool of the server itself.
- IOR is not in Debian 12 and needs MPI. fio 3.33 makes its requests: psync, one sequential file for each process, the transfer size of
  the row. Writes end with fsync (IOR `-e`); reads find nothing in the page cache.
- One-sided transfers of clients use a pool of registered buffers (implicit use), and so do long messages over shared memory and verbs.
  The last table compares the ways of the transports.
- The seed gives best ratios only; its curves are not in the text.""",
        "## One client, 1 to 8 processes (fig. 5)", f"MB/s of all processes together, transfers of 1 MiB, {size(scale.sequential)} in all. Reads:",
        by_system(results, "processes", rows("read", by_processes), every, gain), "Writes:",
        by_system(results, "processes", rows("write", by_processes), every, gain),
        draw("rbp-read", "Sequential read, 1 MiB", "processes", "B/s", results, every,
             [(n, ("read", n, MIB)) for n in PROCESSES], factor=1e6),
        f"""One-sided against messages: reads {span(gains["read"])}, writes {span(gains["write"])} times. The seed, pools against sockets: reads up to 2.02, writes
up to 2.63 times.""",
        "## One client, by transfer size", "MB/s of one process. Reads:", by_system(results, "transfer", rows("read", by_transfer), every, gain), "Writes:",
        by_system(results, "transfer", rows("write", by_transfer), every, gain),
        "## One server, 4 clients (fig. 6)", """MB/s of four mounts with one process each. Tako: a cluster of one member over shared memory. The others keep two copies, as above.""",
        by_system(many, "MB/s", [("read", "read"), ("write", "write")], columns, many_gain),
        f"""One-sided against messages: reads {number(many.ratio("read", ONE_SIDED, BY_MESSAGE))}, writes {number(many.ratio("write", ONE_SIDED, BY_MESSAGE))} times. The seed, pools against sockets: reads up to 2.04, writes up to 2.35 times; its best
write, 4.42 GB/s, is nearly 70 % of raw RDMA. A copy in memory runs at {number(limit)} MB/s here: one-sided reads reach
{100 * many.median("read", ONE_SIDED) / limit:.0f} % of it and writes {100 * many.median("write", ONE_SIDED) / limit:.0f} %, with FUSE and checksums.""",
        "## Registered buffers and pulls, without a file system", """`tako bench fabric`: a payload and its notification, until it has arrived, between two threads: in the message, pushed by a one-sided write,
or pulled by one-sided reads, which is the seed's only way. The last rows of a transport take a buffer from a pool (implicit use) and fill
it, beside registering memory at each use. Pools that their owner takes whole (explicit use) take no buffer in operation, so they have no row.""",
        ways_table(ways),
    ])  # fmt: skip


def experiment(machine, systems, scale):
    document(machine, systems, scale, *measure(systems, scale))
