#!/usr/bin/env python3
"""Compare two builds of chakram on random jobs: times of every node, not sums alone.

    benches/same_times.py OLD NEW [FIRST [LAST]]

Each seed from FIRST (0) to LAST (2000) is a machine of one to three dimensions and a job of two to twelve ranks with kernels,
collectives of all ranks, messages, and loads and stores of remote memory. Both programs replay it with the same options, and
each node has to begin and end at the same picosecond. Prints seeds that differ; the exit code is 1 if any do. Older builds
refuse what they do not know.
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

SHAPES = ["ring", "mesh", "switch", "fully_connected"]
ALGORITHMS = ["ring", "direct", "halving_doubling", "recursive_doubling", "double_binary_tree", "tree", "pairwise", "auto"]
MODELS = ["contention_free", "ports", "links", "exclusive", "fair_sharing"]
COLLECTIVES = [0, 1, 2, 5, 6, 7]  # all-reduce, reduce, all-gather, broadcast, all-to-all, reduce-scatter


def machine(rng):
    """A machine file, its number of NPUs, and whether it has remote memory."""
    sizes = rng.choice([[2], [3], [4], [6], [8], [2, 2], [2, 3], [4, 2], [2, 2, 2], [3, 2, 2]])
    text = [
        'name = "m"\n[npu.a]\npeak = { fp32 = "1 TFLOP/s" }\nmemory_bandwidth = "1 TB/s"\nmemory_latency = "100 ns"',
        f'memory_capacity = "80 GB"\nlanes = {rng.choice([1, 2, 8])}\nhost_lanes = 2',
    ]
    ported = []
    for number, size in enumerate(sizes):
        shape = rng.choice(SHAPES)
        ported += [number] if shape in ("switch", "fully_connected") else []
        text.append(
            f'[[dimension]]\nname = "d{number}"\nshape = "{shape}"\nsize = {size}\n'
            f'bandwidth = "{rng.randint(1, 400)} GB/s"\nlatency = "{rng.randint(0, 3000)} ns"\n'
            f'algorithm = "{rng.choice(ALGORITHMS)}"'
        )
    model = rng.choice(MODELS)
    text.append(f'[network]\nmodel = "{model}"')
    if model in ("ports", "links") and rng.random() < 0.3:
        text.append('switching = "store_and_forward"')
    if rng.random() < 0.5:
        chunks = rng.choice([2, 4])
        text.append(f'[collectives]\nchunks = {chunks}\nactive = {rng.choice([1, chunks])}')
    remote = rng.random() < 0.6
    if remote:
        kind = rng.choice(["per_npu", "pool", "ports"])
        through = ""
        if kind == "ports":
            npus = math.prod(sizes)
            places = sorted(rng.sample(range(npus), rng.randint(1, min(3, npus))))
            through = f'at = "{",".join(map(str, places))}"\n'
        elif ported and rng.random() < 0.6:
            through = f'through = "d{rng.choice(ported)}"\nchunk = "{rng.choice([16, 64, 256])} kB"\n'
        text.append(
            f'[remote_memory]\nattachment = "{kind}"\nbandwidth = "{rng.randint(1, 100)} GB/s"\n'
            f'latency = "{rng.randint(0, 2000)} ns"\ncapacity = "1 TB"\n{through}'
        )
    ranks = 1
    for size in sizes:
        ranks *= size
    return "\n".join(text) + "\n", ranks, remote


def traces(rng, ranks, remote):
    """JSON Lines of each rank."""
    nodes = [[] for _ in range(ranks)]

    def add(rank, kind, lane, attributes, micros=0, nanos=0):
        number = len(nodes[rank]) + 1
        before = [n for n in range(max(1, number - 4), number) if rng.random() < 0.5]
        attr = [{"name": "is_cpu_op", "bool_val": False}, {"name": "stream", "int64_val": lane}]
        attr += [{"name": name, "int64_val": value} for name, value in attributes.items()]
        node = {"id": number, "name": f"n{number}", "type": kind, "data_deps": before, "attr": attr}
        if nanos:
            attr.append({"name": "duration_ns", "uint64_val": nanos})
            node["duration_micros"] = nanos // 1000
        nodes[rank].append(node)

    for _ in range(rng.randint(2, 14)):
        choice = rng.random()
        size = rng.randint(1, 1 << rng.randint(4, 22))
        if choice < 0.35:
            kind, lane = rng.choice(COLLECTIVES), rng.choice([1, 2])
            attributes = {"comm_type": kind, "comm_size": size}
            if kind in (1, 5):
                attributes["root"] = rng.randrange(ranks)
            for rank in range(ranks):
                add(rank, "COMM_COLL_NODE", lane, attributes)
        elif choice < 0.6:
            tag = rng.randrange(1 << 20)
            for _ in range(rng.randint(1, 3)):
                a, b = rng.sample(range(ranks), 2)
                add(a, "COMM_SEND_NODE", 3, {"comm_dst": b, "comm_tag": tag, "comm_size": size})
                add(b, "COMM_RECV_NODE", 4, {"comm_src": a, "comm_tag": tag, "comm_size": size})
                tag += 1
        elif choice < 0.8 and remote:
            for rank in range(ranks):
                if rng.random() < 0.6:
                    kind = rng.choice(["MEM_LOAD_NODE", "MEM_STORE_NODE"])
                    add(rank, kind, 5, {"tensor_size": size, "tensor_loc": 2})
        else:
            for rank in range(ranks):
                add(rank, "COMP_NODE", 0, {"num_ops": 0, "tensor_size": 0}, nanos=rng.randint(1, 60000))
    head = json.dumps({"schema": "chakram.trace.1", "version": "0.0.4"})
    return ["\n".join([head] + [json.dumps(node) for node in of]) + "\n" for of in nodes]


def spans(path):
    """Process, beginning and end of all that ran, however the timeline says it; arrivals are left out, which older builds lack."""
    with open(path) as file:
        found = json.load(file, parse_float=Decimal)["traceEvents"]
    ran, begun = [], defaultdict(list)
    for event in found:
        lane = (event["pid"], event.get("tid"))
        if event["ph"] == "X":
            ran.append((event["pid"], event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "B":
            begun[lane].append(event)
        elif event["ph"] == "E":
            begin = begun[lane].pop()
            if begin["name"] != "arrival":
                ran.append((event["pid"], begin["ts"], event["ts"]))
    return sorted(ran)


def one(seed, programs, base):
    rng = random.Random(seed)
    text, ranks, remote = machine(rng)
    folder = os.path.join(base, str(seed))
    os.makedirs(folder)
    with open(f"{folder}/m.toml", "w") as file:
        file.write(text)
    for rank, lines in enumerate(traces(rng, ranks, remote)):
        with open(f"{folder}/j.{rank}.jsonl", "w") as file:
            file.write(lines)
    options = ["--stepwise"] if rng.random() < 0.3 else []
    answers = []
    for number, program in enumerate(programs):
        out = f"{folder}/t{number}.json"
        command = [program, "replay", f"{folder}/j", "-m", f"{folder}/m.toml", "--timeline", out]
        ran = subprocess.run(command + options, capture_output=True, text=True)
        answers.append(spans(out) if ran.returncode == 0 else None)
    kept = answers[0] != answers[1] and None not in answers
    if not kept:
        shutil.rmtree(folder)
    return seed, answers


def main():
    programs = sys.argv[1:3]
    first, last = [int(text) for text in (sys.argv[3:5] + ["0", "2000"][len(sys.argv[3:5]):])]
    base = tempfile.mkdtemp(prefix="same-times-")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda seed: one(seed, programs, base), range(first, last)))
    both = [(seed, old, new) for seed, (old, new) in rows if old is not None and new is not None]
    one_only = sum((old is None) != (new is None) for _, (old, new) in rows)
    different = [seed for seed, old, new in both if old != new]
    nodes = sum(len(old) for _, old, _ in both)
    print(f"{len(rows)} jobs, {one_only} refused by one, {len(both)} replayed by both: {nodes} nodes, {len(different)} jobs differ")
    for seed in different[:20]:
        print(f"seed {seed}: {base}/{seed}")
    if not different:
        shutil.rmtree(base)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
