#!/usr/bin/env python3
"""Capture a PyTorch job for `chakram convert pytorch`.

    torchrun --nproc-per-node 2 capture.py cnn --out capture
    chakram convert pytorch capture -o job

With GPUs it captures on them with NCCL, otherwise on the CPU with gloo. For a job of your own, copy
`capture` and hand it one training step. Needs PyTorch 2.5 or later: its profiler writes the ids that
join the two files of a rank.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule


def capture(step, folder, rank, wait=1, warmup=1, active=1):
    """Run `step` wait + warmup + active times; write what the last `active` of them did.

    The observer writes host.RANK.json (operators and their arguments), the profiler kineto.RANK.json
    (when they ran). Both must see the same steps, so the profiler starts and stops the observer.
    """
    os.makedirs(folder, exist_ok=True)
    activities, config = [ProfilerActivity.CPU], None
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
        # Says which streams wait for which: without it only the order of launches does.
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
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("job", choices=jobs)
    arguments.add_argument("--out", required=True, help="the folder for the captures")
    arguments.add_argument("--steps", type=int, default=1, help="how many steps to capture")
    given = arguments.parse_args()
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(1234 + rank)
    capture(jobs[given.job](device), given.out, rank, active=given.steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
