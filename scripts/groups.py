#!/usr/bin/env python3
"""Measures shipping by a multicast group beside shipping by links, between hosts that are network namespaces on one bridge.

Usage, as root: scripts/groups.py TAKO [ROUNDS]

For 1, 2 and 3 replicas, in turns: bytes that the primary's interface sends for each byte stored, and MiB/s of writes of 1 MiB
with one fsync, from a mount on the primary's host. Then the same by the group at 0, 1 and 5 % loss at every replica.
"""

import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

MIB = 64


def run(*words, env=None):
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def losing_program(permille):
    """An object file with an XDP program that loses so many of 1000 datagrams to groups."""
    last = 17
    code = [(0x61, 2, 1, 0, 0), (0x61, 3, 1, 4, 0), (0xBF, 4, 2, 0, 0), (0x07, 4, 0, 0, 34), (0x2D, 4, 3, last, 0),
            (0x71, 5, 2, 0, 0), (0x57, 5, 0, 0, 1), (0x15, 5, 0, last, 0), (0x69, 5, 2, 12, 0), (0x55, 5, 0, last, 8),
            (0x71, 5, 2, 23, 0), (0x55, 5, 0, last, 17), (0x85, 0, 0, 0, 7), (0x94, 0, 0, 0, 1000),
            (0x35, 0, 0, last, permille), (0xB7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0), (0xB7, 0, 0, 0, 2), (0x95, 0, 0, 0, 0)]
    code = b"".join(struct.pack("<BBhi", c, to | of << 4, at - i - 1 if at == last else at, value)
                    for i, (c, to, of, at, value) in enumerate(code))
    strings, licence = b"\0.strtab\0xdp\0license\0.symtab\0lose\0", b"GPL\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", strings.index(b"lose"), 0x12, 0, 2, 0, len(code))
    contents, sections = bytes(64), bytes(64)
    for part, name, kind, flags in [(strings, b".strtab", 3, 0), (code, b"xdp", 1, 6), (licence, b"license", 1, 3),
                                    (symbols, b".symtab", 2, 0)]:
        contents += bytes(-len(contents) % 8)
        link, entry = ((1, 1), 24) if kind == 2 else ((0, 0), 0)
        sections += struct.pack("<IIQQQQIIQQ", strings.index(name), kind, flags, 0, len(contents), len(part), *link, 8, entry)
        contents += part
    contents += bytes(-len(contents) % 8)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 1, 247, 1, 0, 0, len(contents), 0, 64, 0, 0, 64, 5, 1)
    return head + contents[64:] + sections


class Cluster:
    def __init__(self, tako, replicas, mode):
        self.tako, self.count = tako, replicas + 1
        self.directory = tempfile.mkdtemp(prefix="tako-groups-", dir="/dev/shm")
        self.env = dict(os.environ, TAKO_STATE=f"{self.directory}/state", TAKO_KEYS=f"{self.directory}/keys/mount")
        self.id, self.nodes = f"tako{os.getpid()}", []
        self.bridge = f"{self.id}b"
        self.make_hosts()
        keys = f"{self.directory}/keys"
        run(tako, "keys", "init", keys, "n1")
        for name in [f"n{n + 1}" for n in range(1, self.count)] + ["mount"]:
            run(tako, "keys", "issue", keys, name)
        for node in range(self.count):
            self.serve(node, mode)
        self.primary = self.wait(mode, replicas)

    def make_hosts(self):
        run("ip", "netns", "add", self.bridge)
        run("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.bridge, "link", "set", "br0", "up")
        for host in range(self.count):
            name = f"{self.id}h{host}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", "tako0", "netns", name, "type", "veth", "peer", "name", f"h{host}", "netns", self.bridge)
            run("ip", "-n", self.bridge, "link", "set", f"h{host}", "master", "br0", "up")
            run("ip", "-n", name, "address", "add", f"10.0.0.{host + 1}/24", "dev", "tako0")
            run("ip", "-n", name, "link", "set", "tako0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def serve(self, node, mode):
        name, path = f"n{node + 1}", f"{self.directory}/n{node + 1}"
        with open(f"{path}.toml", "w") as file:
            file.write(f'cluster = "groups"\nname = "{name}"\nlisten = ["10.0.0.{node + 1}:7474"]\n'
                       f'keys = "{self.directory}/keys/{name}"\ntransport = "tcp"\ngroup = "{mode}"\n'
                       f'[pool]\npath = "{path}.pool"\nsize = "256M"\n[membership]\ndirectory = "{self.directory}/members"\n'
                       f'[unit]\nmembers = {self.count}\n')
        words = ["ip", "netns", "exec", f"{self.id}h{node}", self.tako, "serve", "--config", f"{path}.toml"]
        log = open(f"{path}.log", "w")
        self.nodes.append(subprocess.Popen(words, env=self.env, stdout=log, stderr=log))

    def status(self):
        try:
            return json.loads(run(self.tako, "status", "--name", "groups", "--json", env=self.env))
        except RuntimeError:
            return None

    def wait(self, mode, replicas):
        """The number of the primary, once all is as it shall be."""
        for _ in range(1200):
            status = self.status()
            if status and status["serving"] and status["unit"]["in_sync"] == self.count:
                primary = next(node for node in status["nodes"] if node["role"] == "primary")
                if mode == "off" or primary["group"]["members"] == replicas:
                    return int(primary["name"][1:]) - 1
            time.sleep(0.05)
        raise RuntimeError(f"the cluster does not serve: {status}")

    def lose(self, permille):
        path = f"{self.directory}/lose.o"
        with open(path, "wb") as file:
            file.write(losing_program(permille))
        for host in set(range(self.count)) - {self.primary}:
            name = f"{self.id}h{host}"
            run("ip", "-n", name, "link", "set", "dev", "tako0", "xdpgeneric", "off")
            run("ip", "-n", name, "link", "set", "dev", "tako0", "xdpgeneric", "object", path, "section", "xdp")

    def sent_bytes(self):
        host = f"{self.id}h{self.primary}"
        return int(run("ip", "netns", "exec", host, "cat", "/sys/class/net/tako0/statistics/tx_bytes"))

    def write(self, size=1 << 20):
        """Bytes sent for each byte stored, and MiB/s."""
        mount = f"{self.directory}/mount"
        os.makedirs(mount, exist_ok=True)
        # Blocks of zeros would be there already.
        with open(f"{self.directory}/data", "wb") as file:
            file.write(os.urandom(MIB << 20))
        source = f"tako://10.0.0.{self.primary + 1}:7474/groups"
        write = f"dd if={self.directory}/data of={mount}/file bs={size} count={(MIB << 20) // size} conv=fsync,notrunc status=none"
        again = f"head -c {MIB << 20} /dev/urandom > {self.directory}/data"
        script = (f"set -e; {self.tako} mount {source} {mount} -o transport=tcp; trap '{self.tako} umount {mount}' EXIT; "
                  f"{write}; {again}; before=$(cat /sys/class/net/tako0/statistics/tx_bytes); start=$(date +%s%N); {write}; "
                  "end=$(date +%s%N); after=$(cat /sys/class/net/tako0/statistics/tx_bytes); "
                  "echo $((after - before)) $((end - start))")
        out = run("ip", "netns", "exec", f"{self.id}h{self.primary}", "sh", "-c", script, env=self.env)
        sent, nanoseconds = map(int, out.split()[-2:])
        return sent / (MIB << 20), MIB / (nanoseconds / 1e9)

    def end(self):
        for node in self.nodes:
            node.kill()
            node.wait()
        for name in [f"{self.id}h{host}" for host in range(self.count)] + [self.bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def measure(tako, replicas, mode, what):
    cluster = Cluster(tako, replicas, mode)
    try:
        return what(cluster)
    finally:
        cluster.end()


def at_losses(cluster):
    found = []
    for permille in (0, 10, 50):
        cluster.lose(permille)
        found.append((permille, cluster.write()))
    return found


def main():
    tako, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    results = {}
    for _ in range(rounds):
        for replicas in (1, 2, 3):
            for mode in ("off", "on"):
                for size in (1 << 20, 64 << 10):
                    key = f"{replicas} replicas, group {mode}, {size >> 10} KiB"
                    results.setdefault(key, []).append(measure(tako, replicas, mode, lambda it: it.write(size)))
        for permille, found in measure(tako, 2, "on", at_losses):
            results.setdefault(f"2 replicas, group on, 1024 KiB, {permille / 10} % lost", []).append(found)
    print("| what | bytes sent per byte stored | MiB/s, median (least–most) |\n|---|---|---|")
    for what, found in results.items():
        sent, speeds = statistics.median(it[0] for it in found), [it[1] for it in found]
        print(f"| {what} | {sent:.3f} | {statistics.median(speeds):.0f} ({min(speeds):.0f}–{max(speeds):.0f}) |")


if __name__ == "__main__":
    main()
