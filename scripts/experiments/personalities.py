"""The sequences of calls of three Filebench personalities, made by processes with a share of the files each.

Filebench is not in Debian 12. Counts are smaller than its own (10 000 or 1 000 files, 16 to 100 threads): each process has 50 files.
"""

import os
import random
import shutil
import time

from measure import together

FILES, CLIENTS = 50, 2
KIB = 1024
# Mean length of files.
LENGTH = {"fileserver": 128 * KIB, "webserver": 16 * KIB, "varmail": 16 * KIB}


def rate(directory, name, seconds):
    """Calls of the personality per second, all processes together: creations, whole reads, appends, deletions, fsyncs, stats."""
    place = f"{directory}/{name}"
    os.mkdir(place)
    try:
        return sum(together(CLIENTS, _work, place, name, seconds))
    finally:
        shutil.rmtree(place)


def _work(number, wait, place, name, seconds):
    share = Share(f"{place}/{number}", LENGTH[name])
    loop = {"fileserver": share.fileserver, "webserver": share.webserver, "varmail": share.varmail}[name]
    wait()
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += loop()
    return done / (time.perf_counter() - start)


class Share:
    """The files of one process. A loop returns the number of its steps."""

    def __init__(self, directory, length):
        self.directory, self.random, self.length = directory, random.Random(1), length
        self.data = os.urandom(2 * length)
        os.mkdir(directory)
        self.files = list(range(FILES))
        self.next = FILES
        for file in self.files:
            self.write(file)

    def path(self, file):
        return f"{self.directory}/{file}"

    def any(self):
        return self.random.choice(self.files)

    def write(self, file, length=None, sync=False, flags=os.O_CREAT | os.O_APPEND | os.O_WRONLY):
        descriptor = os.open(self.path(file), flags, 0o600)
        os.write(descriptor, self.data[: length or self.random.randrange(1, 2 * self.length)])
        if sync:
            os.fsync(descriptor)
        os.close(descriptor)

    def read(self, file):
        descriptor = os.open(self.path(file), os.O_RDONLY)
        while os.read(descriptor, 1024 * KIB):
            pass
        os.close(descriptor)

    def create(self, sync=False):
        self.write(self.next, sync=sync)
        self.files.append(self.next)
        self.next += 1

    def delete(self):
        file = self.any()
        self.files.remove(file)
        os.unlink(self.path(file))

    def fileserver(self):
        self.create()
        self.write(self.any(), 16 * KIB)
        self.read(self.any())
        self.delete()
        os.stat(self.path(self.any()))
        return 5

    def webserver(self):
        for _ in range(10):
            self.read(self.any())
        self.write("log", 16 * KIB)
        return 11

    def varmail(self):
        self.delete()
        self.create(sync=True)
        file = self.any()
        self.read(file)
        self.write(file, 8 * KIB, sync=True)
        self.read(self.any())
        # The two syncs count.
        return 7
