#!/usr/bin/env python3
"""Measures the time of calls against the command, and the cost of a table of a million nodes.

    python measure.py PATH-OF-chakram      needs the package, pandas, PyArrow and Polars
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import chakram
import pandas
import polars
import pyarrow

CASE = str(Path(__file__).resolve().parents[1] / "traces" / "ddp-resnet18")
CALLS: list[tuple[list[str], Callable[[], chakram.Report]]] = [
    (["replay", CASE, "-m", "dgx-h100"], lambda: chakram.replay(CASE, machine="dgx-h100")),
    (
        ["generate", "gpt3-13b", "--tensor", "8", "--data", "2", "--batch", "16", "-m", "dgx-a100x8"],
        lambda: chakram.generate("gpt3-13b", tensor=8, data=2, batch=16, machine="dgx-a100x8"),
    ),
    (
        ["generate", "chain", "--nodes", "100000", "--ranks", "2", "-m", "dgx-h100"],
        lambda: chakram.generate_pattern("chain", nodes=100_000, ranks=2, machine="dgx-h100"),
    ),
]


def milliseconds(work: Callable[[], object], times: int = 15) -> float:
    """Median time of several runs in ms."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    for words, call in CALLS:
        line = [sys.argv[1], *words, "--format", "json"]
        command = milliseconds(lambda line=line: subprocess.run(line, stdout=subprocess.DEVNULL, check=True))
        own = milliseconds(lambda call=call: call().to_dict())
        print(f"{' '.join(words)}: command {command:.1f} ms, call {own:.1f} ms")
    nodes = chakram.generate_pattern(
        "chain", nodes=500_000, ranks=2, machine="dgx-h100", keep_nodes=True
    ).node_table()
    for name, make in [
        ("pandas, Arrow's types", lambda: pyarrow.table(nodes).to_pandas(types_mapper=pandas.ArrowDtype)),
        ("pandas.DataFrame.from_arrow", lambda: pandas.DataFrame.from_arrow(nodes)),
        ("polars.DataFrame", lambda: polars.DataFrame(nodes)),
    ]:
        make()
        before, start = resident(), time.perf_counter()
        frame = make()
        taken, more = time.perf_counter() - start, resident() - before
        print(f"{len(frame):,} rows to {name}: {1e3 * taken:.1f} ms, {more / 1e6:.1f} MB more")


if __name__ == "__main__":
    main()
