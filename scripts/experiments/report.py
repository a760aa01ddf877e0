"""Figures of rounds in turns, and the documents with their tables and plots."""

import datetime
import os
import pathlib
import platform
import statistics
import sys
import textwrap

from svg import plot

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Results:
    """The figures of each row and system, one for each round."""

    def __init__(self):
        self.figures = {}

    def add(self, row, system, value):
        self.figures.setdefault((row, system), []).append(value)

    def median(self, row, system):
        return statistics.median(self.figures[row, system])

    def ratio(self, row, system, other):
        """The median of the rounds' ratios."""
        pairs = zip(self.figures[row, system], self.figures[row, other])
        return statistics.median(a / b for a, b in pairs)

    def best(self, row, systems, by=max):
        return by(systems, key=lambda system: self.median(row, system))


def in_turns(what, systems, rounds, measure, into=None):
    """Results of `measure(system)`, which gives pairs of a row and a value, for all systems as often, in rotated order."""
    results = into or Results()
    for number in range(rounds):
        shift = number % len(systems)
        for system in systems[shift:] + systems[:shift]:
            progress(f"{what}, round {number + 1} of {rounds}: {system.name}")
            for row, value in measure(system):
                results.add(row, system.name, value)
    return results


def progress(text):
    print(text, file=sys.stderr, flush=True)


def with_costs(system, row, measure):
    """Pairs for a measure of (operations, bytes, rate): the rate, and what one operation costs."""
    before, sent = system.processor_seconds(), system.sent_bytes()
    operations, length, rate = measure()
    yield row, rate
    for side, start, end in zip(("mount", "servers"), before, system.processor_seconds()):
        yield (row, side), (end - start) * 1e6 / operations
    if sent:
        for side, start, end in zip(("client sends", "servers send"), sent, system.sent_bytes()):
            yield (row, side), (end - start) / length


# ---- text


def number(value):
    """Three digits."""
    if value is None:
        return "–"
    if value >= 1000:
        return f"{round(value, 3 - len(str(int(value)))):,.0f}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


def table(head, rows):
    """Cells that are numbers are shown with three digits."""
    lines = [head, ["---"] * len(head)]
    lines += [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_system(results, what, rows, systems, extra=()):
    """A table of medians: a line for each (row, title); `extra` has (head, cell of a row) for columns behind."""
    head = [what, *(system.name for system in systems), *(title for title, _ in extra)]
    lines = []
    for row, title in rows:
        cells = [results.median(row, s.name) if (row, s.name) in results.figures else None for s in systems]
        lines.append([title, *cells, *(cell(row) for _, cell in extra)])
    return table(head, lines)


def beside(results, system, others, by=max):
    """A column: the system's figure as a multiple of the best of the others, which is named if there are several."""

    def cell(row):
        other = results.best(row, others, by)
        return f"{number(results.ratio(row, system, other))}" + (f" ({other})" if len(others) > 1 else "")

    return cell


def span(values):
    """`2.1 to 3.4`."""
    values = sorted(values)
    return f"{number(values[0])} to {number(values[-1])}" if values[0] != values[-1] else number(values[0])


def size(length):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if length >= 1 << shift:
            return f"{length >> shift} {unit}"
    return f"{length} B"


def draw(name, title, across, unit, results, systems, points, label=str, factor=1):
    """A plot of medians times a factor: `points` are pairs of a position and a row. Returns the line that shows it in a document."""
    lines = [(s.name, [(at, factor * results.median(row, s.name)) for at, row in points if (row, s.name) in results.figures]) for s in systems]
    plot(ROOT / "docs/experiments" / f"{name}.svg", title, across, unit, lines, label)
    return f"![{title}, by {across}]({name}.svg)"


# ---- the machine


class Machine:
    """The machine, and its load at the start and at the end."""

    def __init__(self):
        self.start, self.load = datetime.datetime.now(), os.getloadavg()[0]

    def text(self):
        info = pathlib.Path("/proc/cpuinfo").read_text()
        model = next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name"))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
        took = (datetime.datetime.now() - self.start).seconds
        return (f"{model}, {os.cpu_count()} processors, {memory:.0f} GiB of memory, Linux {platform.release().split('-')[0]}; "
                f"{self.start:%d %B %Y}; load {self.load:.1f} before and {os.getloadavg()[0]:.1f} after {took // 60} min {took % 60} s.")


SMOKE = ("**These are figures of a short run (`--quick`): one round, small files and few seconds for each row. They show the direction, "
         "not the size, of what differs.**")

SYSTEMS = """- **tmpfs**: memory of the kernel: no copies, no server, nothing persistent.
- **Tako, one pool**: unreplicated, mounted: one process between FUSE and the pool.
- **{two}**, **Tako, 3 members, shm**: clusters on this host; nodes and mounts are processes that share memory.
- **Tako, 2 members, tcp**, **GlusterFS** (10.3, replica 2) and **MooseFS** (3.0, goal 2): servers in one network namespace, the
  mount in another, joined by a veth pair; data on tmpfs (`scripts/peers.sh`).

All are measured in turns, in an order that rotates, {rounds}; figures are medians of rounds, and ratios medians of the
rounds' ratios. Caches are as in operation unless a row says otherwise."""


def write(name, machine, scale, two, parts):
    """Writes docs/experiments/NAME.md: a title, what it tells, the machine, the parts."""
    systems = SYSTEMS.format(two=two, rounds="one round each" if scale.rounds == 1 else f"{scale.rounds} rounds each")
    write_with(systems, name, machine, [SMOKE] if scale.quick else [], parts)


def write_with(systems, name, machine, notes, parts):
    """The same, with a description of the compared systems, and notes on the figures."""
    title, purpose, *rest = parts
    head = [f"# {title}", purpose, *notes, f"`make experiments` writes this document. Measured on {machine.text()}",
            "## Compared systems", systems]  # fmt: skip
    (ROOT / "docs/experiments" / f"{name}.md").write_text("\n\n".join(map(wrapped, head + rest)) + "\n")


def wrapped(part):
    """A paragraph in lines of at most 130 characters; other parts are unchanged."""
    is_prose = part[0] not in "#|-!"
    paragraphs = part.split("\n\n") if is_prose else [part]
    return "\n\n".join(textwrap.fill(text, 130, break_on_hyphens=False) if text[0] not in "#|-!" else text for text in paragraphs)
