#!/usr/bin/env python3
"""Compares two builds of chakram on random jobs by the times of every node, not only by totals.

    benches/same_times.py OLD NEW [FIRST [LAST]]
    benches/same_times.py OLD NEW --cases FOLDER

Each seed from FIRST (0) to LAST (2000) gives a machine of one to three dimensions and a job of two to twelve ranks with
kernels, collectives of all ranks, messages, and loads and stores of remote memory. Every third job tests *invalidated closed
forms*: the members of a collective of all ranks, or of groups along one dimension, start together on a network with contention.
Meanwhile messages, or collectives of groups that cross them, use the same links. Both programs replay each job with the
same options, and each node must begin and end at the same picosecond. The output lists the seeds that differ, and the number
of closed forms that NEW replaced by a simulation. The exit code is 1 if any seed differs. Older builds reject unknown features.

With --cases, the jobs are ASTRA-sim's. Each is a folder with an args.txt, such as `cargo run -p testkit -- astra-sim -o FOLDER`
writes. Every third job simulates all messages.
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
from pathlib import Path

SHAPES = ["ring", "mesh", "switch", "fully_connected"]
ALGORITHMS = ["ring", "direct", "halving_doubling", "recursive_doubling", "double_binary_tree", "tree", "pairwise", "auto"]
MODELS = ["contention_free", "ports", "links", "exclusive", "fair_sharing"]
CONTENDED = ["ports", "links", "exclusive"]
COLLECTIVES = [0, 1, 2, 5, 6, 7]  # all-reduce, reduce, all-gather, broadcast, all-to-all, reduce-scatter
ANSWERED = [0, 2, 6, 7]  # those that have closed forms


def machine(rng, contended):
    """Returns a machine file, the sizes of its dimensions, and `True` if it has remote memory."""
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
    model = rng.choice(CONTENDED if contended else MODELS)
    text.append(f'[network]\nmodel = "{model}"')
    if model in ("ports", "links") and rng.random() < 0.3:
        text.append('switching = "store_and_forward"')
    if rng.random() < 0.5:
        chunks = rng.choice([2, 4])
        text.append(f'[collectives]\nchunks = {chunks}\nactive = {1 if contended else rng.choice([1, chunks])}')
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
    return "\n".join(text) + "\n", sizes, remote


def node_of(number, kind, lane, attributes, before, nanos=0, group=None):
    """Returns a node as JSON."""
    attr = [{"name": "is_cpu_op", "bool_val": False}, {"name": "stream", "int64_val": lane}]
    attr += [{"name": name, "int64_val": value} for name, value in attributes.items()]
    attr += [{"name": "pg_name", "string_val": group}] if group else []
    node = {"id": number, "name": f"n{number}", "type": kind, "data_deps": before, "attr": attr}
    if nanos:
        attr.append({"name": "duration_ns", "uint64_val": nanos})
        node["duration_micros"] = nanos // 1000
    return node


def lines(nodes):
    head = json.dumps({"schema": "chakram.trace.1", "version": "0.0.4"})
    return ["\n".join([head] + [json.dumps(node) for node in of]) + "\n" for of in nodes]


def along(sizes):
    """Returns the groups of ranks along each dimension, and the group of all ranks, by name."""
    ranks, stride, groups = math.prod(sizes), 1, {}
    for size in sizes:
        for first in range(ranks):
            if first // stride % size == 0:
                groups[str(len(groups) + 1)] = [first + i * stride for i in range(size)]
        stride *= size
    if len(sizes) > 1:
        groups[str(len(groups) + 1)] = list(range(ranks))
    return groups


def taken_back(rng, sizes):
    """Returns the JSON Lines of each rank, and the groups. Members start together; meanwhile other operations use their links."""
    ranks, groups = math.prod(sizes), along(sizes)
    nodes, ends = [[] for _ in range(ranks)], [[] for _ in range(ranks)]

    def add(rank, *rest, **more):
        nodes[rank].append(node_of(len(nodes[rank]) + 1, *rest, **more))
        return len(nodes[rank])

    size, kind = rng.randint(1 << 12, 1 << 22), rng.choice(ANSWERED)
    for _ in range(rng.randint(2, 6)):
        length, nanos = len(groups[rng.choice(list(groups))]), rng.randint(1, 20000)
        told = {rank: add(rank, "COMP_NODE", 0, {}, ends[rank], nanos=nanos) for rank in range(ranks)}
        ends = [[] for _ in range(ranks)]
        for group, members in groups.items():
            if len(members) != length or rng.random() < 0.1:
                continue
            attributes = {"comm_type": kind, "comm_size": size}
            for rank in members:
                lane = 10 + int(group)
                ends[rank].append(add(rank, "COMM_COLL_NODE", lane, attributes, [told[rank]], group=group))
        for _ in range(rng.randint(0, 4)):
            a, b = rng.sample(range(ranks), 2)
            attributes = {"comm_tag": rng.randrange(1 << 20), "comm_size": rng.randint(1, 1 << 18)}
            late = add(a, "COMP_NODE", 1, {}, [told[a]], nanos=rng.randint(1, size // 40))
            add(a, "COMM_SEND_NODE", 3, {"comm_dst": b, **attributes}, [late])
            ends[b].append(add(b, "COMM_RECV_NODE", 4, {"comm_src": a, **attributes}, []))
        ends = [of or [told[rank]] for rank, of in enumerate(ends)]
    return lines(nodes), groups


def traces(rng, ranks, remote):
    """Returns the JSON Lines of each rank."""
    nodes = [[] for _ in range(ranks)]

    def add(rank, kind, lane, attributes, nanos=0):
        number = len(nodes[rank]) + 1
        before = [n for n in range(max(1, number - 4), number) if rng.random() < 0.5]
        nodes[rank].append(node_of(number, kind, lane, attributes, before, nanos))

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
    return lines(nodes)


def spans(path):
    """Returns process, start and end of all nodes, for any form of the timeline. Omits arrivals, which older builds do not write."""
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
    crossed = seed % 3 == 2
    text, sizes, remote = machine(rng, crossed)
    folder = os.path.join(base, str(seed))
    os.makedirs(folder)
    with open(f"{folder}/m.toml", "w") as file:
        file.write(text)
    options = []
    if crossed:
        jobs, groups = taken_back(rng, sizes)
        with open(f"{folder}/groups.json", "w") as file:
            json.dump(groups, file)
        options = ["--groups", f"{folder}/groups.json"]
    else:
        jobs = traces(rng, math.prod(sizes), remote)
        options = ["--stepwise"] if rng.random() < 0.3 else []
    for rank, text in enumerate(jobs):
        with open(f"{folder}/j.{rank}.jsonl", "w") as file:
            file.write(text)
    arguments = ["replay", f"{folder}/j", "-m", f"{folder}/m.toml", *options]
    answers, back = run_all(programs, arguments, folder, folder)
    if not differ(answers):
        shutil.rmtree(folder)
    return seed, answers, back


def one_case(number, case, programs, base):
    network, *arguments = Path(case, "args.txt").read_text().split()
    folder = os.path.join(base, str(number))
    os.makedirs(folder)
    stepwise = ["--stepwise"] if number % 3 == 0 else []
    answers, back = run_all(programs, ["astra-sim", *arguments, "--network-model", network, *stepwise], case, folder)
    shutil.rmtree(folder)
    return case, answers, back


def run_all(programs, arguments, inside, folder):
    """Returns each program's times (None if it fails), and the number of closed forms that the last program replaced."""
    answers, back = [], 0
    for number, program in enumerate(programs):
        out = f"{folder}/t{number}.json"
        command = [program, *arguments, "--timeline", out, "--format", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=inside)
        answers.append(spans(out) if ran.returncode == 0 else None)
        back = json.loads(ran.stdout).get("collectives_materialized", 0) if ran.returncode == 0 else 0
    return answers, back


def differ(answers):
    return None not in answers and answers[0] != answers[1]


def main():
    programs = [os.path.abspath(program) for program in sys.argv[1:3]]
    base = tempfile.mkdtemp(prefix="same-times-")
    if sys.argv[3:4] == ["--cases"]:
        cases = sorted(str(file.parent.absolute()) for file in Path(sys.argv[4]).glob("*/args.txt"))
        jobs = [lambda number=number, case=case: one_case(number, case, programs, base) for number, case in enumerate(cases)]
    else:
        first, last = [int(text) for text in (sys.argv[3:5] + ["0", "2000"][len(sys.argv[3:5]):])]
        jobs = [lambda seed=seed: one(seed, programs, base) for seed in range(first, last)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(lambda job: job(), jobs))
    both = [(seed, old, new) for seed, (old, new), _ in rows if old is not None and new is not None]
    one_only = sum((old is None) != (new is None) for _, (old, new), _ in rows)
    back = sum(back for _, _, back in rows)
    different = [seed for seed, old, new in both if old != new]
    nodes = sum(len(old) for _, old, _ in both)
    print(f"{len(rows)} jobs, {one_only} refused by one, {len(both)} replayed by both: {nodes} nodes, "
          f"{back} answers taken back, {len(different)} jobs differ")
    for seed in different[:20]:
        print(seed if isinstance(seed, str) else f"seed {seed}: {base}/{seed}")
    if not different:
        shutil.rmtree(base)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
