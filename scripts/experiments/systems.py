"""The file systems that the experiments compare: how each is started and mounted, what it spends, and how it ends."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAKO = os.environ.get("TAKO_BIN", str(ROOT / "target/release/tako"))
PEERS = str(ROOT / "scripts/peers.sh")
TICKS = os.sysconf("SC_CLK_TCK")


def run(*words, **options):
    """The standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} failed: {(done.stderr or done.stdout).strip()[-500:] or f'exit code {done.returncode}'} ({' '.join(map(str, words))})")
    return done.stdout


class System:
    """A mounted file system. Files are made in `directory`."""

    def __init__(self, name, directory):
        self.name, self.directory = name, str(directory)

    def processes(self):
        """The processes of mounts, and those of servers."""
        return [], []

    def processor_seconds(self):
        """Processor time so far of mounts, and of servers."""
        return [sum(map(seconds_of, processes)) for processes in self.processes()]

    def sent_bytes(self):
        """Bytes that the client's network interface has sent, and those between servers; None without a network."""
        return None


def seconds_of(process):
    try:
        # After the name, which may contain spaces.
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICKS


def command_of(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


class Local(System):
    """Tako on this host, with its state and mounts in a place of its own: a cluster, or one pool."""

    def __init__(self, name, place):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="tako-", dir=place))
        self.mounts = []
        self.env = dict(os.environ, TAKO_STATE=f"{self.place}/state")
        super().__init__(name, self.place / "mount")
        (self.place / "mount").mkdir()

    def processes(self):
        own = [(int(name), command_of(name)) for name in os.listdir("/proc") if name.isdigit()]
        own = [(process, words) for process, words in own if any(str(self.place) in word for word in words) and "tako" in words[0]]
        return [p for p, words in own if words[1] == "mount"], [p for p, words in own if words[1] == "serve"]

    def mount(self, source, directory, *options):
        os.makedirs(directory, exist_ok=True)
        self.mounts.append(str(directory))
        run(TAKO, "mount", *options, source, directory, env=self.env)

    def stop(self):
        for directory in self.mounts:
            if subprocess.run([TAKO, "umount", directory], env=self.env, capture_output=True).returncode != 0:
                subprocess.run(["fusermount3", "-uz", directory], capture_output=True)


class Pool(Local):
    """One pool, mounted: Tako without replication and without a network."""

    def __init__(self, name, place, size):
        super().__init__(name, place)
        run(TAKO, "mkfs", self.place / "pool", "--size", size)
        self.mount(self.place / "pool", self.directory)

    def stop(self):
        super().stop()
        shutil.rmtree(self.place, ignore_errors=True)


class Cluster(Local):
    """A cluster of this host over shared memory."""

    def __init__(self, name, place, size, *nodes, mount="io=server"):
        super().__init__(name, place)
        self.cluster = "experiment"
        try:
            run(TAKO, "up", "--name", self.cluster, "--size", size, "--directory", self.place / "pools", *nodes, env=self.env)
            self.mount(f"tako:///{self.cluster}", self.directory, "-o", mount)
        except BaseException:
            self.stop()
            raise

    def another(self, number, option):
        """The directory of another mount, by a process of its own."""
        directory = f"{self.place}/mount{option[-3:]}{number}"
        self.mount(f"tako:///{self.cluster}", directory, "-o", option)
        return directory

    def stop(self):
        super().stop()
        subprocess.run([TAKO, "down", "--name", self.cluster, "--remove"], env=self.env, capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)


class Peer(System):
    """A file system that scripts/peers.sh has mounted, between two network namespaces."""

    def __init__(self, name, path, *programs):
        self.path, self.programs, self.mounts = path, programs, []
        directory = f"{path}/experiments"
        os.mkdir(directory)
        super().__init__(name, directory)

    def processes(self):
        def own(namespace):
            processes = run("ip", "netns", "pids", namespace).split()
            return [int(p) for p in processes if os.path.basename(command_of(p)[:1] and command_of(p)[0]) in self.programs]

        return own("tako-clients"), own("tako-servers")

    def sent_bytes(self):
        def sent(namespace, interface):
            return json.loads(run("ip", "-j", "-s", "-n", namespace, "link", "show", "dev", interface))[0]["stats64"]["tx"]["bytes"]

        return sent("tako-clients", "tako-c"), sent("tako-servers", "lo")

    def another(self, number, _option):
        """The directory of another mount, by a process of its own."""
        point = f"/dev/shm/tako-peers/{os.path.basename(self.path)}{number}"
        os.makedirs(point, exist_ok=True)
        keys = "/dev/shm/tako-peers/tako/keys/client"
        words = {"gluster": ["mount", "-t", "glusterfs", "10.77.0.1:/tako", point],
                 "mfs": ["mfsmount", point, "-H", "10.77.0.1"],
                 "tako-tcp": [TAKO, "mount", "-o", f"keys={keys}", "tako://10.77.0.1:7471,10.77.0.1:7472/peers", point]}  # fmt: skip
        run("nsenter", "--net=/run/netns/tako-clients", *words[os.path.basename(self.path)])
        self.mounts.append(point)
        return f"{point}/experiments"

    def stop(self):
        for point in self.mounts:
            subprocess.run(["umount", "-l", point], capture_output=True)


class Systems:
    """All of them, which end with the `with` block, however it ends."""

    def __init__(self, scale):
        self.scale, self.started = scale, []

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: raise_exit())
        signal.signal(signal.SIGHUP, lambda *_: raise_exit())
        self.place = tempfile.mkdtemp(prefix="tako-experiments-", dir="/dev/shm")
        self.has_peers = False
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start_all(self):
        if os.path.exists("/dev/shm/tako-peers"):
            raise RuntimeError("the peers are mounted already; run `scripts/peers.sh down` first")
        self.has_peers = True
        run(PEERS, "up", env=dict(os.environ, TAKO_BIN=TAKO, TAKO_POOL=self.scale.pool))
        os.mkdir(f"{self.place}/tmpfs")
        self.tmpfs = System("tmpfs", f"{self.place}/tmpfs")
        self.pool = self.start(Pool, "Tako, one pool", self.scale.pool)
        self.three = self.start(Cluster, "Tako, 3 members, shm", self.scale.pool, "--nodes", 3)
        self.tcp = Peer("Tako, 2 members, tcp", "/mnt/tako-tcp", "tako")
        self.gluster = Peer("GlusterFS", "/mnt/gluster", "glusterfs", "glusterfsd", "glusterd")
        self.moosefs = Peer("MooseFS", "/mnt/mfs", "mfsmaster", "mfschunkserver", "mfsmount")
        self.started += [self.tcp, self.gluster, self.moosefs]
        self.peers = [self.gluster.name, self.moosefs.name]

    def start(self, kind, name, *words, **options):
        system = kind(name, self.place, *words, **options)
        self.started.append(system)
        return system

    def stop(self, system):
        system.stop()
        self.started.remove(system)

    def all(self, two):
        """All that are compared, with this cluster of two members."""
        return [self.tmpfs, self.pool, two, self.three, self.tcp, self.gluster, self.moosefs]

    def __exit__(self, *_):
        # A second Ctrl-C shall not leave the rest behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for system in reversed(self.started):
            system.stop()
        if self.has_peers:
            subprocess.run([PEERS, "down"], capture_output=True)
        shutil.rmtree(self.place, ignore_errors=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def raise_exit():
    raise SystemExit("stopped by a signal")
