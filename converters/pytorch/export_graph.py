#!/usr/bin/env python3
"""Write the operators of a model for `chakram convert pytorch`, without running it.

    python3 export_graph.py model.py:build -o graph.json
    chakram convert pytorch graph.json -o job
    chakram replay job --machine dgx-h100 --compute roofline

`build` in model.py returns the module and a tuple of its arguments (and a dictionary of keyword arguments, if it
has any); tensors on the device `meta` take no memory. A program that torch.export.save wrote (.pt2) needs no
`:build`. The file is a host execution trace, schema 1.1.1: operators with shapes, types and storages, without times.
From Python, `write(graph_module, "graph.json")` takes any torch.fx graph of ATen operators whose nodes have
`meta["val"]`, as those of torch.export and make_fx do.
"""
import argparse
import importlib.util
import json
import os
import sys

SCHEMA = "1.1.1-chakra.0.0.4"
PROCESS, THREAD, FIRST = 1, 2, 3
# The observer's names of element types.
ELEMENTS = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16",
            "int64": "long int", "int32": "int", "int16": "short int", "int8": "signed char",
            "uint8": "unsigned char", "bool": "bool", "complex64": "c10::complex<float>",
            "complex128": "c10::complex<double>", "float8_e4m3fn": "c10::Float8_e4m3fn",
            "float8_e5m2": "c10::Float8_e5m2"}


class Unfit(Exception):
    """What is wrong with a graph, and what to try."""

    def __init__(self, found, remedy):
        super().__init__(f"{found}\n  try: {remedy}")


def number(size):
    """A size as a number: that of the example, where a dimension is symbolic."""
    hint = getattr(getattr(size, "node", None), "hint", None)
    return int(size if hint is None else hint)


class GraphWriter:
    """Nodes of a host execution trace, made of a graph."""

    def __init__(self, device):
        self.device, self.nodes = device, []
        self.tensors, self.storages = {}, {}
        # Like the observer, use one counter for nodes, tensors and storages.
        self.next = FIRST

    def new(self):
        self.next += 1
        return self.next - 1

    def tensor(self, key, value):
        """A tensor as the observer writes it: value, shape, strides and type."""
        from torch.multiprocessing.reductions import StorageWeakRef

        place = self.tensors.get(key)
        if place is None:
            place = self.tensors[key] = self.new()
        try:
            memory = StorageWeakRef(value.untyped_storage()).cdata
        except (NotImplementedError, RuntimeError):
            memory = key
        if memory not in self.storages:
            self.storages[memory] = self.new()
        shape, elements = [number(size) for size in value.shape], 1
        for size in shape:
            elements *= size
        kind = str(value.dtype).removeprefix("torch.")
        what = [place, self.storages[memory], number(value.storage_offset()), elements, value.element_size(),
                self.device]
        strides = [number(stride) for stride in value.stride()]
        return what, shape, strides, f"Tensor({ELEMENTS.get(kind, kind)})"

    def argument(self, given):
        """One argument or result: value, shape, strides and type."""
        import torch

        if isinstance(given, torch.fx.Node):
            return self.result(given)
        if isinstance(given, (list, tuple)):
            parts = [self.argument(part) for part in given]
            kinds = ",".join(part[3] for part in parts)
            return *([part[i] for part in parts] for i in range(3)), f"GenericList[{kinds}]"
        if given is None:
            return "<None>", [], [], "None"
        for kind, name in ((bool, "Bool"), (int, "Int"), (float, "Double"), (str, "String")):
            if isinstance(given, kind):
                finite = kind is not float or abs(given) < float("inf")
                return given if finite else str(given), [], [], name
        return "<Object>", [], [], "Object"

    def result(self, node):
        """What a node of the graph stands for."""
        import operator
        import torch

        if node.op == "call_function" and node.target is operator.getitem:
            source, index = node.args
            return self.of(source.name, source.meta.get("val"))(index)
        return self.of(node.name, node.meta.get("val"))()

    def of(self, name, value):
        """A function that returns the value, or the part of it with some index, in the observer's words."""
        import torch

        def shown(part, key):
            if isinstance(part, torch.Tensor):
                return self.tensor(key, part)
            if isinstance(part, (list, tuple)):
                parts = [shown(inner, (*key, i)) for i, inner in enumerate(part)]
                kinds = ",".join(inner[3] for inner in parts)
                return *([inner[i] for inner in parts] for i in range(3)), f"GenericList[{kinds}]"
            if isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return self.argument(number(part))
            return self.argument(part)

        def at(index=None):
            return shown(value, (name,)) if index is None else shown(value[index], (name, index))

        return at

    def side(self, parts):
        values, shapes, strides, types = ([part[i] for part in parts] for i in range(4))
        return {"values": values, "shapes": shapes, "types": types, "strides": strides}

    def add(self, name, inputs, outputs, schema="", parent=THREAD, place=None):
        attrs = [("rf_id", "uint64", len(self.nodes) + 1), ("fw_parent", "uint64", 0), ("seq_id", "int64", -1),
                 ("scope", "uint64", 0), ("tid", "uint64", 1), ("fw_tid", "uint64", 0),
                 ("op_schema", "string", schema)]
        self.nodes.append({
            "id": self.new() if place is None else place, "name": name, "ctrl_deps": parent,
            "inputs": self.side(inputs), "outputs": self.side(outputs),
            "attrs": [{"name": key, "type": kind, "value": value} for key, kind, value in attrs]})

    def operator(self, node):
        """Adds the operator of a node, with its arguments in the order of its schema."""
        import torch

        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unfit(f"the node `{node.name}` calls {node.target}, which is no ATen operator",
                        "torch.export.export, or make_fx of torch.fx.experimental.proxy_tensor, on the model "
                        "without autocast, no_grad and autograd functions of its own inside")
        if "val" not in node.meta:
            raise Unfit(f"the node `{node.name}` has no meta[\"val\"], so nothing tells its shapes",
                        "a graph of torch.export or of make_fx with tracing_mode=\"fake\"")
        schema, given = node.target._schema, list(node.args)
        for place, argument in enumerate(schema.arguments[len(given):], len(given)):
            given.append(node.kwargs.get(argument.name, argument.default_value))
        inputs = [self.argument(part) for part in given]
        value = node.meta["val"]
        several = isinstance(value, (list, tuple)) and len(schema.returns) > 1
        shown = self.of(node.name, value)
        outputs = [shown(i) for i in range(len(value))] if several else [shown()]
        self.add(schema.name, inputs, outputs, str(schema))


def write(graph_module, path, device="cuda:0"):
    """Write the operators of a torch.fx graph of ATen operators to `path`; return their number."""
    import operator

    writer = GraphWriter(device)
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            writer.operator(node)
        elif node.op in ("call_module", "call_method"):
            raise Unfit(f"the node `{node.name}` calls {node.target}, which is no ATen operator",
                        "torch.export.export of the model in place of torch.fx.symbolic_trace")
    count = len(writer.nodes)
    if count == 0:
        raise Unfit("the graph has no operators", "the graph of a model's forward pass")
    writer.add("[pytorch|profiler|execution_trace|thread]", [], [], parent=PROCESS, place=THREAD)
    writer.add("[pytorch|profiler|execution_trace|process]", [], [], parent=PROCESS, place=PROCESS)
    for root in writer.nodes[-2:]:
        root["attrs"][0]["value"] = 0
    document = {"schema": SCHEMA, "source": "export_graph.py", "nodes": writer.nodes}
    with open(path + ".part", "w") as file:
        json.dump(document, file, separators=(",", ":"), allow_nan=False)
    os.replace(path + ".part", path)
    return count


def exported(model):
    """The graph of `model`: FILE.pt2, or FILE.py:FUNCTION."""
    import torch

    path, _, function = model.rpartition(":")
    if model.endswith(".pt2"):
        return torch.export.load(model).graph_module
    if not path.endswith(".py") or not os.path.isfile(path):
        raise Unfit(f"{model} is neither a saved program nor a function in a file of Python",
                    "model.pt2, or model.py:build")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("exported_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise Unfit(f"{path} has no `{function}`", "the name of a function that returns (module, arguments)")
    net, args, *rest = getattr(module, function)()
    with torch.no_grad():
        return torch.export.export(net, tuple(args), rest[0] if rest else None).graph_module


def refuse(what):
    print(f"export_graph.py: error: {what}", file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL", help="FILE.py:FUNCTION, or FILE.pt2 of torch.export.save")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the file to write, .json")
    parser.add_argument("--device", default="cuda:0", help="the device that tensors are said to be on (cuda:0)")
    given = parser.parse_args()
    try:
        count = write(exported(given.model), given.out, given.device)
    except (Unfit, OSError) as wrong:
        refuse(wrong)
    except ImportError as error:
        refuse(f"{error}\n  try: pip install torch numpy")
    print(f"{count} operators in {given.out}; next: chakram convert pytorch {given.out} -o job")


if __name__ == "__main__":
    main()
