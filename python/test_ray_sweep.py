#!/usr/bin/env python3
"""Runs ray_sweep.py on a local Ray cluster of two nodes and kills one of them in the middle.

    python test_ray_sweep.py

The merged rows must equal those of one run without Ray, byte for byte.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

STUDY = """name = "wires"
[base]
machine = "dgx-h100"
model = "gpt2-small"
tokens = 64
"model.layers" = 8
plan.data = 8
plan.batch = 64
compute = "roofline"
[[axis]]
key = "machine.dimension.nvlink.bandwidth"
from = "50 GB/s"
to = "450 GB/s"
step = "10 GB/s"
[[axis]]
key = "plan.micro_batch"
values = [1, 2, 4, 8]
"""


def main():
    import chakram
    from ray.cluster_utils import Cluster

    script = pathlib.Path(__file__).with_name("ray_sweep.py").resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "study.toml").write_text(STUDY)
        chakram.sweep(folder / "study.toml", output=folder / "whole")
        memory = 100 << 20
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": memory})
        lost = cluster.add_node(num_cpus=1, object_store_memory=memory)
        cluster.wait_for_nodes()
        run = subprocess.Popen(
            [sys.executable, str(script), "study.toml", "--shards", "8", "-o", "results",
             "--address", cluster.address],
            cwd=folder, stdout=subprocess.PIPE, text=True)
        killed = False
        for line in run.stdout:
            print(line, end="", flush=True)
            if not killed and line.startswith("2 of 8"):
                killed = True
                print("killing a node", flush=True)
                cluster.remove_node(lost, allow_graceful=False)
        code = run.wait()
        cluster.shutdown()
        assert killed and code == 0, f"killed {killed}, exit code {code}"
        for name in ["rows.csv", "rows.jsonl", "front.csv"]:
            one, other = [(folder / of / name).read_bytes() for of in ["whole", "results/merged"]]
            assert one == other, name
        print("equal")


if __name__ == "__main__":
    start = time.monotonic()
    main()
    print(f"{time.monotonic() - start:.0f} s")
