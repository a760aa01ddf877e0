"""What is run in a mounted directory: fio, Redis, calls of forked processes, and Tako's own benchmark of transports."""

import concurrent.futures
import ctypes
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from systems import TAKO, run

REDIS_PORT = 7392
PATIENCE = 120


# ---- fio


def fio(directories, seconds=None, **options):
    """Runs one job for each directory (or `numjobs` in one); returns its sums: operations, bytes, op/s, B/s, mean µs."""
    directories = [directories] if isinstance(directories, str) else directories
    options = {"ioengine": "psync", "thread": 1, "group_reporting": 1, "fallocate": "none", "norandommap": 1, **options}
    if seconds:
        options |= {"time_based": 1, "runtime": f"{round(seconds * 1000)}ms"}
    lines = []
    for number, directory in enumerate(directories):
        # fio makes the path when it reads the name, so the directory comes first.
        lines += [f"[job{number}]", f"directory={directory}", *(f"{key}={value}" for key, value in options.items())]
    # Errors and notes come first, on the same stream.
    out = run("fio", "--output-format=json", "-", input="\n".join(lines), timeout=PATIENCE)
    job = json.loads(out[out.index("{") :])["jobs"][0]
    side = job["read" if "read" in options["rw"] else "write"]
    if job["error"] or not side["total_ios"]:
        raise RuntimeError(f"fio failed in {directories[0]}: error {job['error']}; run it with these lines:\n" + "\n".join(lines))
    if "filename" in options and not os.path.exists(f"{directories[0]}/{options['filename']}"):
        raise RuntimeError(f"fio worked elsewhere than in {directories[0]}")
    latency = (side["clat_ns"]["mean"] + (job["sync"]["lat_ns"]["mean"] if "fsync" in options else 0)) / 1000
    return {"operations": side["total_ios"], "bytes": side["io_bytes"], "rate": side["iops"], "bandwidth": side["bw_bytes"],
            "latency": latency}  # fmt: skip


def overwrite(directory, seconds, block, length, **options):
    """fio's random writes over a file that is there."""
    name = f"over{length}"
    return fio(directory, seconds, rw="randwrite", bs=block, filename=name, size=length, overwrite=1, **options)


# ---- Redis


def redis(directory, seconds, requests):
    """SET requests per second for each pair of (value length, clients), with a log that is synced at each change."""
    place = f"{directory}/redis"
    os.mkdir(place)
    words = ["redis-server", "--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--dir", place, "--save", "", "--appendonly", "yes",
             "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]  # fmt: skip
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(["redis-cli", "-p", str(REDIS_PORT), "ping"], capture_output=True).stdout != b"PONG\n":
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)
        return [redis_rate(length, clients, seconds) for length, clients in requests]
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(place)


def redis_rate(length, clients, seconds):
    def rate(count):
        words = ["redis-benchmark", "-p", str(REDIS_PORT), "-t", "set", "-n", str(count), "-c", str(clients), "-d", str(length), "--csv"]
        return float(run(*words, timeout=PATIENCE).strip().splitlines()[-1].split(",")[1].strip('"'))

    # The first gives the count that takes as long as wished.
    return rate(max(200, round(rate(100 * clients) * seconds)))


# ---- calls of forked processes

_barrier = None


def _start(barrier):
    global _barrier
    _barrier = barrier


def together(clients, work, *arguments):
    """What `work(number, wait, *arguments)` returns in each of so many processes. `wait()` returns in all of them at once."""
    context = multiprocessing.get_context("fork")
    pool = concurrent.futures.ProcessPoolExecutor(clients, context, _start, (context.Barrier(clients, timeout=PATIENCE),))
    with pool:
        return [future.result() for future in [pool.submit(_work, work, number, *arguments) for number in range(clients)]]


def _work(work, number, *arguments):
    return work(number, _barrier.wait, *arguments)


class Statx:
    """getattr that asks the file system, whatever the kernel keeps."""

    def __init__(self):
        self.call, self.buffer = ctypes.CDLL(None, use_errno=True).statx, ctypes.create_string_buffer(256)

    def __call__(self, path):
        here, force_sync, basic = -100, 0x2000, 0x7FF
        if self.call(here, os.fsencode(path), force_sync, basic, self.buffer) != 0:
            raise OSError(ctypes.get_errno(), "statx", path)


def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def make_listed(directory, count=100):
    """A directory of so many entries."""
    os.mkdir(directory)
    for number in range(count):
        create(f"{directory}/{number}")


CALLS = ["mkdir", "mknod", "create", "getattr", "readdir", "unlink", "rmdir"]


def calls(directory, clients, seconds):
    """Calls per second of so many processes, by the name of the call; each process works in a directory of its own."""
    place = f"{directory}/calls"
    os.mkdir(place)
    try:
        rates = together(clients, _calls, place, seconds)
    finally:
        shutil.rmtree(place)
    return {call: sum(rate[call] for rate in rates) for call in CALLS}


def _calls(number, wait, place, seconds):
    own = f"{place}/{number}"
    os.mkdir(own)
    make_listed(f"{own}/listed")
    rates, made, statx = {}, {}, Statx()

    def timed(name, call, paths):
        wait()
        done, start = 0, time.perf_counter()
        for path in paths:
            call(path)
            done += 1
            if name not in ("unlink", "rmdir") and time.perf_counter() - start > seconds:
                break
        rates[name] = done / (time.perf_counter() - start)
        made[name] = done

    def names(kind, count=20_000):
        return (f"{own}/{kind}{index}" for index in range(count))

    timed("mkdir", os.mkdir, names("d"))
    timed("mknod", os.mknod, names("n"))
    timed("create", create, names("c"))
    timed("getattr", statx, (f"{own}/n{index % made['mknod']}" for index in range(1_000_000)))
    timed("readdir", os.listdir, (f"{own}/listed" for _ in range(1_000_000)))
    timed("unlink", os.unlink, [*names("n", made["mknod"]), *names("c", made["create"])])
    timed("rmdir", os.rmdir, names("d", made["mkdir"]))
    return rates


def latencies(directory, seconds):
    """Medians in µs of one process: 1 KB write with fsync, getattr, readdir of 100 entries."""
    place = f"{directory}/latencies"
    make_listed(place)
    file = os.open(f"{place}/0", os.O_RDWR)
    data, statx = bytes(1024), Statx()

    def write(index):
        os.pwrite(file, data, index % 1024 * 1024)
        os.fsync(file)

    try:
        return {"write and fsync": median_of(write, seconds), "getattr": median_of(lambda _: statx(f"{place}/1"), seconds),
                "readdir": median_of(lambda _: os.listdir(place), seconds)}  # fmt: skip
    finally:
        os.close(file)
        shutil.rmtree(place)


def median_of(call, seconds):
    """In µs, of 30 calls at least, after one that is not counted."""
    call(0)
    times, end = [], time.perf_counter() + seconds
    while len(times) < 30 or times[-1][1] < end:
        start = time.perf_counter()
        call(len(times))
        times.append((start, time.perf_counter()))
    return statistics.median(after - before for before, after in times) * 1e6


# ---- Tako's own benchmark


def transports(name):
    """Rows of `tako bench NAME`: by name, Tako's figure and that of the raw transport, in ns, bytes/s or 1/s."""
    # It makes a pool that these rows do not use: not in memory.
    words = ["bench", "--json", "--quick", "--directory", tempfile.gettempdir(), name]
    rows = json.loads(run(TAKO, *words, timeout=600))["rows"]
    found, above = {}, ""
    for row in rows:
        # A name that is set in belongs to the one above.
        inner = row["name"].startswith(" ")
        above = above if inner else row["name"].partition(",")[0]
        key = f"{above}, {row['name'].strip()}" if inner else row["name"]
        found[key] = (row["tako"]["value"], row["limit"]["value"] if row["limit"] else None, row["limit_name"])
    return found


def require():
    """Fails if a program is missing."""
    for program in ("fio", "redis-server", "redis-benchmark", "ip", TAKO):
        if not shutil.which(program):
            raise RuntimeError(f"{program} is missing; run `make build` and `scripts/install.sh experiments`")
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces and mounts of peers need root; run it as root")
