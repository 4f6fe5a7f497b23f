#!/usr/bin/env python3
"""Capture a PyTorch job for `chakram convert pytorch`.

    python3 capture.py --check --out capture
    torchrun --nproc-per-node 2 capture.py cnn --out capture
    chakram convert pytorch capture -o job

With GPUs it captures on them with NCCL, otherwise on the CPU with gloo. For a job of your own, copy
`capture` and hand it one training step. Needs PyTorch 2.5 or later: its profiler writes the ids that
join the two files of a rank.
"""
import argparse
import glob
import inspect
import json
import os
import re
import shutil
import sys
import time

PYTHON, TORCH = (3, 9), (2, 5)
# A rank of the small jobs below writes 4 to 7 MB; a rank of a large job, some hundred.
SPACE = 100_000_000


class Unfit(Exception):
    """What is wrong with the environment, and what to try."""

    def __init__(self, found, remedy):
        super().__init__(f"{found}\n  try: {remedy}")


def imported():
    """Import PyTorch, or say why it cannot be."""
    if sys.version_info < PYTHON:
        raise Unfit(f"this is Python {sys.version.split()[0]} ({sys.executable}), and PyTorch needs "
                    f"{PYTHON[0]}.{PYTHON[1]} or later", "python3 -m venv with a newer Python")
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise Unfit(f"PyTorch is there, but its module {error.name} is not",
                        f"pip install {error.name}")
        raise Unfit(f"there is no PyTorch in this Python ({sys.executable})",
                    "pip install torch numpy, or the Python of the environment that has it")
    except (ImportError, OSError) as error:
        raise Unfit(f"PyTorch is there and cannot be loaded: {error}",
                    "a build of PyTorch for this system, installed anew into an empty environment")
    return torch


def device_text(torch):
    """Say on what this captures; refuse a build or a driver with which it cannot."""
    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < TORCH:
        raise Unfit(f"this is PyTorch {torch.__version__}, and its profiler writes no record function ids "
                    f"before {TORCH[0]}.{TORCH[1]}", "pip install --upgrade torch")
    if not torch.distributed.is_available():
        raise Unfit(f"PyTorch {torch.__version__} was built without torch.distributed",
                    "a build for Linux or macOS with USE_DISTRIBUTED")
    if not torch.profiler.kineto_available():
        raise Unfit(f"PyTorch {torch.__version__} was built without Kineto, the profiler", "an official wheel")
    if "execution_trace_observer" not in inspect.signature(torch.profiler.profile).parameters:
        raise Unfit(f"the profiler of PyTorch {torch.__version__} takes no execution_trace_observer",
                    "an official wheel of PyTorch 2.5 or later")
    kind, of = ("ROCm", torch.version.hip) if torch.version.hip else ("CUDA", torch.version.cuda)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if not torch.distributed.is_nccl_available():
            raise Unfit("there are GPUs, and this PyTorch was built without NCCL", "an official wheel")
        if local > count:
            raise Unfit(f"{local} ranks on this machine, which has {count} GPUs; each rank needs its own",
                        f"torchrun --nproc-per-node {count}, or more machines (--nnodes)")
        names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
        return f"{kind} {of}; captures on {count} GPUs ({', '.join(names)}), with NCCL"
    if not torch.distributed.is_gloo_available():
        raise Unfit("there is no GPU, and this PyTorch was built without gloo", "an official wheel")
    there = bool(glob.glob("/dev/nvidia[0-9]*") or os.path.exists("/dev/kfd"))
    if of is None:
        reason = "built for CPUs" + (": the GPUs of this machine stay unused" if there else "")
    elif there:
        reason = f"{kind} {of}, and the GPUs of this machine cannot be used: mostly an older driver"
    else:
        reason = f"{kind} {of}, and there is no GPU here"
    return f"{reason}; captures on the CPU, with gloo: good for networks, not for GPUs"


def folder_text(folder, world):
    """Say how much room `folder` has; refuse one that cannot be written, or has captures of other ranks."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    try:
        os.makedirs(folder, exist_ok=True)
        probe = os.path.join(folder, f".capture-{os.getpid()}")
        with open(probe, "wb") as file:
            file.write(b"x" * 4096)
        os.remove(probe)
    except OSError as error:
        raise Unfit(f"cannot write into {folder}: {error.strerror}", "--out with another folder")
    free = shutil.disk_usage(folder).free
    if free < SPACE * local:
        raise Unfit(f"{free / 1e6:.0f} MB are free in {folder}, and a capture of {local} ranks may need "
                    f"{SPACE * local / 1e6:.0f}", "--out on another disk")
    ranks = [re.fullmatch(r"(?:host|kineto|steps)\.(\d+)\.json", name) for name in os.listdir(folder)]
    ranks = sorted({int(found[1]) for found in ranks if found})
    if world is not None and any(rank >= world for rank in ranks):
        raise Unfit(f"{folder} has a capture of rank {ranks[-1]}, and this job has {world} ranks: the two would be "
                    "converted together", "--out with an empty folder")
    return f"{folder}, writable, {free / 1e9:.1f} GB free"


def check(folder):
    """Check Python, PyTorch, the device, the ranks and the folder; return what was found, line by line."""
    torch = imported()
    world = os.environ.get("WORLD_SIZE")
    return [f"python   {sys.version.split()[0]}",
            f"torch    {torch.__version__}: {device_text(torch)}",
            f"folder   {folder_text(folder, None if world is None else int(world))}"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", choices=["cnn", "gpt", "pipeline"], help="a small job to try")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the folder for the captures")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="number of steps to capture")
    parser.add_argument("--check", action="store_true", help="check the environment, and capture nothing")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error("--steps: at least one")
    if not given.check:
        if given.job is None:
            parser.error("which job? cnn, gpt or pipeline; or --check")
        if "RANK" not in os.environ:
            parser.error("a rank of a job is started by torchrun\n"
                         f"  try: torchrun --nproc-per-node 2 {sys.argv[0]} {given.job} --out {given.out}")
    return given


if __name__ == "__main__":
    GIVEN = arguments()
    try:
        FOUND = check(GIVEN.out)
    except Unfit as unfit:
        # The ranks of one machine usually find the same problem. Only the first reports it, and torchrun
        # then ends the others.
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(10)
        where = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
        print(f"capture.py: error: {where}{unfit}", file=sys.stderr, flush=True)
        sys.exit(2)
    if GIVEN.check:
        print("\n".join(FOUND))
        sys.exit()

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule


def times(step, count):
    """Run `step` so many times; return how long each took, in nanoseconds.

    On a GPU that is from one end on the device to the next: nobody waits for it in between.
    """
    if not torch.cuda.is_available():
        ends = [time.perf_counter_ns()]
        for _ in range(count):
            step()
            ends.append(time.perf_counter_ns())
        return [end - start for start, end in zip(ends, ends[1:])]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [round(start.elapsed_time(end) * 1e6) for start, end in zip(events, events[1:])]


def capture(step, folder, rank, wait=1, warmup=1, active=1, unprofiled=10):
    """Run `step` wait + warmup + active times; write what the last `active` of them did.

    The observer writes host.RANK.json (operators and their arguments), the profiler kineto.RANK.json
    (when they ran). Both must see the same steps, so the profiler starts and stops the observer.

    Before and after that, half of `unprofiled` steps each run without them: their times go to
    steps.RANK.json, and replays are held against them. 0 runs none.
    """
    os.makedirs(folder, exist_ok=True)
    # Drop the first step of each half: it contains allocations, or the profiler is still working on its last step.
    plain = times(step, 1 + unprofiled - unprofiled // 2)[1:] if unprofiled else []
    activities, config = [ProfilerActivity.CPU], None
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
        # Record which streams wait for which. Without this record, only the order of launches would be
        # known.
        config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    observer = ExecutionTraceObserver().register_callback(f"{folder}/host.{rank}.json")
    try:
        with profile(
            activities=activities,
            schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/kineto.{rank}.json"),
            record_shapes=True,
            execution_trace_observer=observer,
            experimental_config=config,
        ) as profiler:
            for _ in range(wait + warmup + active):
                step()
                profiler.step()
    finally:
        observer.unregister_callback()
    if unprofiled:
        plain += times(step, 1 + unprofiled // 2)[1:]
        with open(f"{folder}/steps.{rank}.json", "w") as file:
            json.dump({"unprofiled_ns": plain, "captured_steps": active}, file)


# ---- three small jobs to try it on ----


class Residual(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.a = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = nn.Conv2d(inside, out, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm_b(self.b(F.relu(self.norm_a(self.a(x)))))
        return F.relu(y + self.skip(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, width = x.shape
        split = (b, t, self.heads, width // self.heads)
        q, k, v = (y.view(split).transpose(1, 2) for y in self.qkv(self.norm_a(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norm_b(x))))


def cnn(device):
    """A residual network, data parallel."""
    widths = [64, 64, 128, 256, 512]
    body = [Residual(a, b, 1 + (a != b)) for a, b in zip(widths, widths[1:])]
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1), *body,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )
    return data_parallel(net, device, lambda: (
        torch.randn(4, 3, 64, 64, device=device), torch.randint(0, 1000, (4,), device=device)))


def gpt(device):
    """Four transformer blocks, data parallel."""
    net = nn.Sequential(nn.Embedding(1024, 256), *(Block(256, 8) for _ in range(4)),
                        nn.LayerNorm(256), nn.Linear(256, 1024), nn.Flatten(0, 1))
    tokens = lambda: torch.randint(0, 1024, (2, 64), device=device)
    return data_parallel(net, device, lambda: (tokens(), tokens().flatten()))


def data_parallel(net, device, batch):
    net = nn.parallel.DistributedDataParallel(net.to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step():
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def pipeline(device):
    """One transformer block a rank, four microbatches through all of them (GPipe)."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    parts = [nn.Embedding(1024, 256)] * first + [Block(256, 8)] + [nn.Linear(256, 1024)] * last
    net = nn.Sequential(*parts).to(device)
    loss = lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten())
    schedule = ScheduleGPipe(PipelineStage(net, rank, world, device), 4, loss_fn=loss)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        torch.manual_seed(1)
        x, y = (torch.randint(0, 1024, (8, 64), device=device) for _ in range(2))
        schedule.step(*[x] * first, **({"target": y} if last else {}))
        optimizer.step()
        optimizer.zero_grad()

    return step


def main():
    jobs = {job.__name__: job for job in (cnn, gpt, pipeline)}
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(1234 + rank)
    capture(jobs[GIVEN.job](device), GIVEN.out, rank, active=GIVEN.steps)
    dist.barrier()
    dist.destroy_process_group()
    for part in ("host", "kineto"):
        file = f"{GIVEN.out}/{part}.{rank}.json"
        if not os.path.isfile(file) or os.path.getsize(file) == 0:
            sys.exit(f"capture.py: error: rank {rank} has written no {file}\n"
                     "  try: look for messages of the profiler above; a full disk, or another profiler at work")
    if rank == 0:
        print(f"captured {steps_text(GIVEN.steps)} of {os.environ['WORLD_SIZE']} ranks into {GIVEN.out}; "
              f"next: chakram convert pytorch {GIVEN.out} -o job")


def steps_text(steps):
    return "1 step" if steps == 1 else f"{steps} steps"


if __name__ == "__main__":
    main()
