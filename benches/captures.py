#!/usr/bin/env python3
"""Converts every capture under a folder and prints a row for each: its size, the linked share and its confidence, the
kept share of device time, and the speed and memory of converting the uncompressed JSON on one thread. The row of a
rejected capture contains the error.

    cargo build --release
    python3 benches/captures.py target/release/chakram FOLDER

Seconds are CPU time, the minimum of three runs, and include the start-up. Memory is the peak resident set; `held` is the part
that the conversion allocated, without the pages of the program itself, about 17 MB for every capture. Compressed files are
first decompressed by the programs gzip and zstd.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

PACKED = {".gz": "gzip", ".zst": "zstd"}
NO_CAPTURE = re.compile(r"^(timing|pair).*\.json$")


def measured(command, out):
    """Returns the exit status, the CPU seconds, the peak resident set, and the part of it that is the program's pages, in bytes."""
    program = 0
    with open(out / "stdout", "wb") as stdout, open(out / "stderr", "wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            # A process that has just ended reports no numbers.
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"^RssFile:\s+(\d+) kB", status, re.MULTILINE)
            program = max(program, int(found[1]) * 1024 if found else 0)
            time.sleep(0.001)
    _, status, usage = ended
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, program


def jobs(root):
    """Yields files that belong together: a folder's ranks, or a single file."""
    for folder, _, names in sorted(os.walk(root)):
        known = [name for name in sorted(names) if ".json" in name and not NO_CAPTURE.match(name)]
        folder = pathlib.Path(folder)
        together = {}
        for name in known:
            kind = re.match(r"(host|kineto_only|kineto)\.\d+\.json", name)
            key = name if not kind else "kineto_only.*" if kind[1] == "kineto_only" else ""
            together.setdefault(key, []).append(folder / name)
        for key, files in together.items():
            yield os.path.relpath(folder / key, root), files


def unpacked(files, out):
    # Other programs decompress the files, because the resident set of a child process starts with that
    # of its parent.
    for file in files:
        packed = file.suffix in PACKED
        command = [PACKED[file.suffix], "-dc", file] if packed else ["cat", file]
        plain = out / (file.name.removesuffix(file.suffix) if packed else file.name)
        with open(plain, "wb") as data:
            subprocess.run(command, stdout=data, check=True)
        yield plain


def row(program, label, files):
    with tempfile.TemporaryDirectory() as out:
        out = pathlib.Path(out)
        plain = list(unpacked(files, out))
        size = sum(file.stat().st_size for file in plain)
        command = [program, "convert", "pytorch", *plain, "-o", out / "job", "--threads", "1", "--format", "json", "-q"]
        runs = [measured(command, out) for _ in range(3)]
        code, seconds, peak = runs[0][0], min(run[1] for run in runs), max(run[2] for run in runs)
        held = peak - max(run[3] for run in runs)
        if code:
            reason = (out / "stderr").read_text().splitlines()[0].replace(str(out) + "/", "")
            return f"{label:60} refused: {reason[:150]}"
        summary = json.loads((out / "stdout").read_text())
    ranks = summary["ranks"]
    of = lambda key: sum(rank[key] for rank in ranks)
    nodes, linked = of("host_nodes"), of("linked")
    kept, device = (sum(rank["device_ns"][i] for rank in ranks) for i in (1, 0))
    part = lambda some, whole: f"{100 * some / whole:.1f}" if whole else "-"
    confidence = [rank["confidence"] for rank in ranks if rank["method"] == "order"]
    written = sum(rank["written"]["nodes"] for rank in ranks)
    calls = sum(summary["collectives"].values()) + summary["messages"]
    return (
        f"{label:60}{len(ranks):>5}{written:>9}"
        f"{part(linked, nodes):>8}{f'{min(confidence):.3f}' if confidence else 'ids':>8}{part(kept, device):>8}{calls:>7}"
        f"{size / 1e6:>8.1f}{seconds:>8.3f}{size / 1e6 / seconds:>6.0f}{peak / 1e6:>7.1f}{peak / size:>6.2f}{held / 1e6:>7.1f}{held / size:>6.2f}"
    )


def main():
    program, root = sys.argv[1:]
    heads = ("ranks", 5), ("nodes", 9), ("linked%", 8), ("conf.", 8), ("device%", 8), ("calls", 7), ("MB", 8), ("s", 8), ("MB/s", 6), ("RSS", 7), ("/JSON", 6), ("held", 7), ("/JSON", 6)
    print(f"{'capture':60}" + "".join(f"{text:>{width}}" for text, width in heads))
    for label, files in jobs(root):
        print(row(program, label, files), flush=True)


if __name__ == "__main__":
    main()
