"""Writes the graphs of this folder, and prints the table of `export.rs`.

    python3 make.py     needs PyTorch, numpy and zstd

FLOPs come from PyTorch's own counter in a run. Bytes are counted on real tensors while an interpreter runs the graph: the
inputs and outputs of each operator, each tensor once; none if all its results are in the memory of its inputs.
"""
import os
import subprocess
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../../converters/pytorch"))
import export_graph


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


class Vision(nn.Module):
    """Patches preceded by a learned token."""

    def __init__(self):
        super().__init__()
        self.patch, self.block, self.head = nn.Conv2d(3, 96, 8, 8), Block(96, 3), nn.Linear(96, 10)
        self.token, self.place = nn.Parameter(torch.zeros(1, 1, 96)), nn.Parameter(torch.zeros(1, 17, 96))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.block(x)[:, 0])


class Upward(nn.Module):
    """Grouped and transposed convolutions, one in one dimension, and a broadcast product."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1, groups=2)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv1d(8, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.ones(256, 5))

    def forward(self, x):
        a = F.silu(self.a(x))
        b = F.silu(self.b(a))
        both = torch.cat([self.up(b), a], 1)[:, :8]
        return self.out(both.flatten(2)) @ self.weight


def perceptron():
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 10), nn.Softmax(-1))
    return net, torch.randn(32, 64)


def residual():
    net = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1), Residual(16, 16, 1),
                        Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 100))
    return net, torch.randn(2, 3, 64, 64)


def transformer():
    net = nn.Sequential(nn.Embedding(1024, 128), Block(128, 4), Block(128, 4), nn.LayerNorm(128),
                        nn.Linear(128, 1024))
    return net, torch.randint(0, 1024, (2, 32))


def vision():
    return Vision(), torch.randn(3, 3, 32, 32)


def upward():
    return Upward(), torch.randn(2, 3, 16, 16)


class BytesCounter(torch.fx.Interpreter):
    """Counts operators, and the bytes of their tensors."""

    operators = bytes = 0

    def call_function(self, target, args, kwargs):
        result = super().call_function(target, args, kwargs)
        if isinstance(target, torch._ops.OpOverload):
            inputs, outputs = {}, {}
            self.gather((args, tuple(kwargs.values())), inputs)
            self.gather(result, outputs)
            held = {tensor.untyped_storage().data_ptr() for tensor in inputs.values()}
            self.operators += 1
            if not all(tensor.untyped_storage().data_ptr() in held for tensor in outputs.values()):
                self.bytes += sum(tensor.nbytes for side in (inputs, outputs) for tensor in side.values())
        return result

    def gather(self, value, tensors):
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, (tuple, list)):
            for part in value:
                self.gather(part, tensors)


def main():
    for model in (perceptron, residual, transformer, vision, upward):
        torch.manual_seed(0)
        net, x = model()
        net.eval()
        with torch.no_grad(), FlopCounterMode(display=False) as flops:
            net(x)
        with torch.no_grad():
            program = torch.export.export(net, (x,))
            counter = BytesCounter(program.graph_module)
            given = {spec.arg.name: x for spec in program.graph_signature.input_specs if spec.target is None}
            state = {**program.state_dict, **program.constants}
            counter.run(*(given.get(spec.arg.name, state.get(spec.target))
                          for spec in program.graph_signature.input_specs))
        path = os.path.join(HERE, f"{model.__name__}.json")
        count = export_graph.write(program.graph_module, path)
        assert count == counter.operators
        subprocess.run(["zstd", "-q", "-f", "-19", "--rm", path], check=True)
        print(f'    ("{model.__name__}", {count}, {flops.get_total_flops():_}, {counter.bytes:_}),')


if __name__ == "__main__":
    main()
