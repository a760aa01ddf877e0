#!/usr/bin/env python3
"""Reproduces the experiments of published systems and writes docs/experiments.

run.py [--quick] [octopus] [mtfs] [rbp] [rzcfs]    as root; ROUNDS is the number of rounds (3), TAKO_BIN the program
"""

import dataclasses
import os
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
sys.dont_write_bytecode = True

# ruff: noqa: E402
import measure
import mtfs
import octopus
import rbp
import rzcfs
from report import Machine
from systems import Systems

MIB = 1 << 20
EXPERIMENTS = {"octopus": octopus, "mtfs": mtfs, "rbp": rbp}


@dataclasses.dataclass
class Scale:
    """How much is measured. Lengths are bytes."""

    quick: bool
    rounds: int
    seconds: float
    pool: str
    pool_small: str
    # Of a file for random requests; of one for sequential ones; the largest.
    file: int
    sequential: int
    largest: int


def main():
    names = [word for word in sys.argv[1:] if word != "--quick"]
    quick = "--quick" in sys.argv[1:]
    if set(names) - {*EXPERIMENTS, "rzcfs"}:
        sys.exit(__doc__)
    rounds = int(os.environ.get("ROUNDS", 1 if quick else 3))
    scale = (Scale(True, rounds, 0.05, "192M", "64M", 4 * MIB, 16 * MIB, 2 * MIB) if quick
             else Scale(False, rounds, 0.2, "768M", "128M", 64 * MIB, 128 * MIB, 2048 * MIB))  # fmt: skip
    try:
        beside_peers = [name for name in names or EXPERIMENTS if name in EXPERIMENTS]
        if beside_peers:
            measure.require()
            with Systems(scale) as systems:
                for name in beside_peers:
                    EXPERIMENTS[name].experiment(Machine(), systems, scale)
                    print(f"docs/experiments/{name}.md")
        if not names or "rzcfs" in names:
            rzcfs.experiment(Machine())
            print("docs/experiments/rzcfs.md")
    except (RuntimeError, OSError) as error:
        sys.exit(f"experiments: {error}")
    except KeyboardInterrupt:
        sys.exit("experiments: interrupted")


main()
