#!/usr/bin/env python3
"""Runs the shards of a study for `chakram sweep` as tasks of a Ray cluster, and merges them.

    python ray_sweep.py study.toml --shards 64 -o results [--address auto] [--threads 2]

Each task is `chakram.sweep(STUDY, output=SHARD, shard="I/N")`, in a folder of its node. The study and the files that it
names (`--with FILE` for each) are sent with the task, so nodes need no shared file system, only the package `chakram`. A
task returns its journal, which contains every answer. A task that is lost with its node runs again on another node, from
the start; a task that fails runs again `--retries` times, and then the error is printed. Each completed shard prints a
line. At the end `chakram.merge_sweep` writes rows.csv, rows.jsonl, front.csv and index.html to the folder. An interrupted
run can be resumed: shards whose journals are already in the folder do not run again.

Needs Python 3.9 or newer and the packages `chakram` and `ray`.
"""

import argparse
import pathlib
import sys
import tempfile
import time


def run_shard(name, files, index, count, threads):
    """Runs a shard in a temporary folder and returns its journal."""
    import chakram

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        chakram.sweep(folder / name, output=folder / "shard", shard=f"{index}/{count}", threads=threads)
        return (folder / "shard" / "journal.jsonl").read_bytes()


def main():
    parser = argparse.ArgumentParser(description="Run a study's shards on Ray, and merge them")
    parser.add_argument("study", type=pathlib.Path)
    parser.add_argument("--shards", type=int, required=True, help="number of tasks")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of the results")
    parser.add_argument("--address", default="auto", help="of the cluster; auto by default")
    parser.add_argument("--threads", type=int, default=1, help="threads of a task, which are its CPUs")
    parser.add_argument("--with", dest="beside", action="append", default=[], type=pathlib.Path,
                        help="a file that the study names, by its path from the study's folder")
    parser.add_argument("--retries", type=int, default=3, help="of a task that is lost or fails")
    args = parser.parse_args()

    import chakram
    import ray

    parts = args.output / "shards"
    parts.mkdir(parents=True, exist_ok=True)
    journal = lambda index: parts / f"{index}-of-{args.shards}" / "journal.jsonl"
    left = [index for index in range(args.shards) if not journal(index).exists()]
    root = args.study.parent
    files = {str(path): (root / path).read_bytes() for path in args.beside}
    files[args.study.name] = args.study.read_bytes()

    ray.init(address=args.address, log_to_driver=False)
    shared = ray.put(files)
    task = ray.remote(num_cpus=args.threads, max_retries=args.retries, retry_exceptions=True)(run_shard)
    running = {}
    for index in left:
        running[task.remote(args.study.name, shared, index, args.shards, args.threads)] = index
    start, failed = time.monotonic(), []
    while running:
        done, _ = ray.wait(list(running), num_returns=1)
        for one in done:
            index = running.pop(one)
            try:
                data = ray.get(one)
            except Exception as error:
                failed.append(index)
                print(f"shard {index}: {error}", file=sys.stderr)
                continue
            journal(index).parent.mkdir(exist_ok=True)
            # The rename makes the journal appear only when it is complete.
            part = journal(index).with_suffix(".part")
            part.write_bytes(data)
            part.rename(journal(index))
            count = args.shards - len(running) - len(failed)
            print(f"{count} of {args.shards} shards, {time.monotonic() - start:.1f} s", flush=True)
    if failed:
        sys.exit(f"{len(failed)} shards failed; run the same command again for them")
    folders = [journal(index).parent for index in range(args.shards)]
    print(chakram.merge_sweep(args.study, folders, output=args.output / "merged").text, end="")


if __name__ == "__main__":
    main()
