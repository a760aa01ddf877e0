"""Locks on a file of a mount, tried by processes. Usage: locks.py FILE kernel|shared"""

import errno
import fcntl
import os
import select
import signal
import struct
import sys

PATH = sys.argv[1]
# Whether the file system keeps the locks, and not the kernel.
SHARED = sys.argv[2] == "shared"
FLOCK = "hhqqi4x"


def call(command, kind, start, length, file, pid=0):
    """fcntl with a struct flock; what it holds then, or the errno."""
    lock = struct.pack(FLOCK, kind, os.SEEK_SET, start, length, pid)
    try:
        return struct.unpack(FLOCK, fcntl.fcntl(file, command, lock))
    except OSError as error:
        return error.errno


def take(kind, start, length, file):
    return isinstance(call(fcntl.F_SETLK, kind, start, length, file), tuple)


def opened():
    return os.open(PATH, os.O_RDWR)


class Child:
    """A process that works and then stays until it is told to end."""

    def __init__(self, work):
        done, self.tell = os.pipe()
        self.hear, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.tell)
            os.close(self.hear)
            try:
                work(lambda word: os.write(said, word))
                os.read(done, 1)
                os._exit(0)
            except BaseException as error:
                print("child:", repr(error), file=sys.stderr)
                os._exit(1)
        os.close(done)
        os.close(said)

    def word(self):
        return os.read(self.hear, 1)

    def is_silent(self):
        return not select.select([self.hear], [], [], 0)[0]

    def end(self, kill=False):
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.tell)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.hear)
        assert kill or status == 0, status


def in_child(work):
    """What work returns, asked in another process: true or false."""
    child = Child(lambda say: say(b"1" if work() else b"0"))
    word = child.word()
    child.end()
    return word == b"1"


def free(kind, start, length):
    return in_child(lambda: take(kind, start, length, opened()))


def holder(kind, start, length):
    """The lock that is in the way of another process: kind, start, length."""
    file = opened()

    def work(say):
        found = call(fcntl.F_GETLK, kind, start, length, file)
        say(struct.pack(FLOCK, *found))

    child = Child(work)
    found = struct.unpack(FLOCK, os.read(child.hear, 64))
    child.end()
    return found


def is_blocked(pid):
    """Whether a process sleeps in a lock: the kernel lists waits for its own locks, and the system call of each process."""
    if SHARED:
        with open("/proc/%d/syscall" % pid) as call:
            # fcntl and flock.
            return call.read().split()[0] in ("72", "73")
    with open("/proc/locks") as locks:
        return any(" -> " in line and " %d " % pid in line for line in locks)


def wait_until_blocked(pid):
    wait_until(lambda: is_blocked(pid))
    if SHARED:
        wait_until_sent()


def wait_until_sent():
    """Waits until earlier requests have been sent: through queues the kernel (Linux 6.18) forgets interruptions before that.
    Each processor has a queue, and later requests are sent later. statfs is never cached."""
    processors = os.sched_getaffinity(0)
    for processor in processors:
        os.sched_setaffinity(0, {processor})
        os.statvfs(PATH)
    os.sched_setaffinity(0, processors)


def wait_until(condition):
    while not condition():
        os.sched_yield()


def soon(condition):
    """Whether the condition holds after a file was closed. The keeper of shared locks is notified of that, without a wait."""
    if SHARED:
        wait_until(condition)
    return condition()


def ranges():
    file = opened()
    assert take(fcntl.F_WRLCK, 0, 100, file)
    assert not free(fcntl.F_RDLCK, 99, 1) and free(fcntl.F_WRLCK, 100, 0)
    # A lock taken out of the middle leaves two; a kind changed there makes three.
    assert take(fcntl.F_UNLCK, 40, 20, file)
    assert free(fcntl.F_WRLCK, 40, 20)
    assert not free(fcntl.F_WRLCK, 39, 1) and not free(fcntl.F_WRLCK, 60, 1)
    assert take(fcntl.F_RDLCK, 10, 10, file)
    assert free(fcntl.F_RDLCK, 10, 10) and not free(fcntl.F_WRLCK, 10, 10)
    assert holder(fcntl.F_WRLCK, 0, 0)[:4] == (fcntl.F_WRLCK, 0, 0, 10)
    # Neighbours of one kind become one.
    assert take(fcntl.F_WRLCK, 10, 50, file)
    kind, _, start, length, pid = holder(fcntl.F_WRLCK, 0, 0)
    assert (kind, start, length, pid) == (fcntl.F_WRLCK, 0, 100, os.getpid())
    # Closing any descriptor of the file gives up the locks of the process.
    os.close(opened())
    assert free(fcntl.F_WRLCK, 0, 0)
    os.close(file)


def open_file_descriptions():
    one, other = opened(), opened()
    def set_(kind, start, length, file):
        return call(fcntl.F_OFD_SETLK, kind, start, length, file)
    assert isinstance(set_(fcntl.F_WRLCK, 0, 10, one), tuple)
    assert set_(fcntl.F_RDLCK, 5, 1, other) == errno.EAGAIN
    assert isinstance(set_(fcntl.F_RDLCK, 10, 1, other), tuple)
    assert call(fcntl.F_OFD_GETLK, fcntl.F_RDLCK, 5, 1, other)[4] == -1
    assert not take(fcntl.F_RDLCK, 0, 1, other), "against the locks of processes too"
    # A copy of a descriptor shares them; they go with the last one.
    copy = os.dup(one)
    os.close(one)
    assert set_(fcntl.F_RDLCK, 5, 1, other) == errno.EAGAIN
    os.close(copy)
    assert soon(lambda: isinstance(set_(fcntl.F_RDLCK, 5, 1, other), tuple))
    os.close(other)


def deadlock():
    file = opened()
    assert take(fcntl.F_WRLCK, 0, 1, file)

    def work(say):
        own = opened()
        assert take(fcntl.F_WRLCK, 1, 1, own)
        say(b"1")
        # The later of the two is told. When a request arrives cannot be seen, so that this may be the one.
        if call(fcntl.F_SETLKW, fcntl.F_WRLCK, 0, 1, own) == errno.EDEADLK:
            assert SHARED
            say(b"D")
        else:
            say(b"2")

    child = Child(work)
    assert child.word() == b"1"
    wait_until_blocked(child.pid)
    refused = call(fcntl.F_SETLKW, fcntl.F_WRLCK, 1, 1, file)
    if refused == errno.EDEADLK:
        assert child.is_silent()
        assert take(fcntl.F_UNLCK, 0, 1, file)
        assert child.word() == b"2"
    else:
        word = child.word()
        assert word == b"D", (word, refused)
    child.end()
    os.close(file)


def interruption():
    file = opened()
    assert take(fcntl.F_WRLCK, 0, 0, file)

    def stop(*_):
        raise InterruptedError

    def work(say):
        signal.signal(signal.SIGUSR1, stop)
        say(b"1")
        try:
            fcntl.lockf(opened(), fcntl.LOCK_EX)
        except InterruptedError:
            say(b"2")

    child = Child(work)
    assert child.word() == b"1"
    wait_until_blocked(child.pid)
    os.kill(child.pid, signal.SIGUSR1)
    assert child.word() == b"2"
    child.end()
    os.close(file)


def whole_files():
    file = opened()
    def tries(kind):
        def work():
            try:
                fcntl.flock(opened(), kind | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                return False
        return work
    fcntl.flock(file, fcntl.LOCK_SH)
    assert in_child(tries(fcntl.LOCK_SH)) and not in_child(tries(fcntl.LOCK_EX))
    fcntl.flock(file, fcntl.LOCK_EX)
    assert not in_child(tries(fcntl.LOCK_SH))
    assert free(fcntl.F_WRLCK, 0, 0), "the two kinds do not know each other"

    def work(say):
        own = opened()
        say(b"1")
        fcntl.flock(own, fcntl.LOCK_EX)
        say(b"2")

    child = Child(work)
    assert child.word() == b"1"
    wait_until_blocked(child.pid)
    fcntl.flock(file, fcntl.LOCK_UN)
    assert child.word() == b"2"
    child.end()
    os.close(file)


def death():
    def work(say):
        own = opened()
        assert take(fcntl.F_WRLCK, 0, 0, own)
        fcntl.flock(own, fcntl.LOCK_EX)
        say(b"1")
        signal.pause()

    child = Child(work)
    assert child.word() == b"1"
    assert not free(fcntl.F_RDLCK, 0, 0)
    child.end(kill=True)
    assert free(fcntl.F_WRLCK, 0, 0)
    file = opened()
    assert soon(lambda: takes_whole(file))
    os.close(file)


def takes_whole(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def crowd():
    """Many more wait than a queue has room for: others continue, killed ones end, and the rest get the lock."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    file = opened()
    assert take(fcntl.F_WRLCK, 0, 1, file)
    fcntl.flock(file, fcntl.LOCK_EX)
    start, go = os.pipe()

    def waits_for(lock):
        def work(say):
            os.close(go)
            own = opened()
            # All at once.
            os.read(start, 1)
            lock(own)
            say(b"1")
            # At once, so that the next one gets it.
            os._exit(0)
        return Child(work)

    def asks(number):
        def work(say):
            os.close(go)
            os.read(start, 1)
            name = "%s-%d" % (PATH, number)
            with open(name, "w") as made:
                made.write("x" * 9000)
            os.unlink(name)
            say(b"1")
            os._exit(0)
        return Child(work)

    waiters, askers = [], []
    for number in range(50):
        waiters.append(waits_for(lambda own: fcntl.lockf(own, fcntl.LOCK_EX, 1, 0)))
        waiters.append(waits_for(lambda own: fcntl.flock(own, fcntl.LOCK_EX)))
        askers.append(asks(number))
    os.close(start)
    os.close(go)
    for asker in askers:
        assert asker.word() == b"1"
        asker.end()
    for waiter in waiters:
        wait_until_blocked(waiter.pid)
    for waiter in waiters[:40]:
        waiter.end(kill=True)
    rest = waiters[40:]
    assert all(waiter.is_silent() for waiter in rest)
    asks_now = Child(lambda say: say(b"1" if os.stat(PATH).st_size == 0 else b"0"))
    assert asks_now.word() == b"1"
    asks_now.end()
    assert take(fcntl.F_UNLCK, 0, 1, file)
    fcntl.flock(file, fcntl.LOCK_UN)
    for waiter in rest:
        assert waiter.word() == b"1"
        waiter.end()
    assert free(fcntl.F_WRLCK, 0, 0)
    os.close(file)


def late(*_):
    raise TimeoutError


signal.signal(signal.SIGALRM, late)
signal.alarm(180)
for part in (ranges, open_file_descriptions, deadlock, interruption, whole_files, death, crowd):
    try:
        part()
    except BaseException:
        print("in", part.__name__, file=sys.stderr)
        raise
