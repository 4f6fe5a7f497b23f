#!/usr/bin/env python3
"""Writes package/chakram/_api.py: a function for each command, with the command's own options, helps and defaults.

The native half describes the command line (`_chakram.describe`), so both have the same options with the same help.
`generate_api.py --check` fails if the file differs from this program's output.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
TARGET = HERE / "package" / "chakram" / "_api.py"

# Options that results replace, or that only concern terminals.
LEFT_OUT = {"format", "quiet", "verbose", "details", "table", "top", "list", "help", "explain"}
# Names of values that are comma-separated lists.
JOINED = {"NPUS", "RANKS", "RATES", "TIMES", "DIMENSIONS", "GROUP"}

Argument = dict[str, Any]
Command = dict[str, Any]


def read(describe: str) -> dict[tuple[str, ...], Command]:
    return {tuple(command["path"]): command for command in json.loads(describe)}


def python_name(argument: Argument) -> str:
    name = (argument["flag"] or argument["name"]).replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def value_type(argument: Argument) -> str:
    """Python type of an argument, from its values or the name of its value."""
    value = argument["value"] or ""
    if argument["is_switch"]:
        return "bool"
    if argument["values"]:
        names = [one["name"] for one in argument["values"]]
        if names in (["true", "false"], ["false", "true"]):
            return "bool"
        return "Literal[" + ", ".join(repr(name) for name in names) + "]"
    if value == "BOOL":
        return "bool"
    if value in ("N", "ROW", "LAYERS"):
        return "int"
    if value == "MACHINE" or value == "PLATFORM":
        return "MachineLike"
    if re.match(r"(FILE|FOLDER|PREFIX|PATH|TRACES|OUT|INPUT|SCENARIO|STUDY|RUNS|ARCHIVE|BEFORE|AFTER|A|B)\b", value):
        return "PathLike"
    if value == "SIZE":
        return "Union[str, int]"
    if value in JOINED:
        return "Union[str, Sequence[Union[str, int]]]"
    if re.match(r"(FRACTION|DOLLARS|RATE|SHARE|TOKENS|STAGE)\b", value):
        return "Union[str, int, float]"
    return "Union[str, int, float]" if value in ("SEED", "NUMBER") else "str"


def annotation(argument: Argument) -> str:
    kind = value_type(argument)
    if argument["is_repeatable"]:
        pairs = "=" in (argument["value"] or "")
        several = f"Sequence[{kind}]"
        kind = f"Union[{kind}, {several}, Mapping[str, Any]]" if pairs else f"Union[{kind}, {several}]"
    return kind


def unmarked(text: str) -> str:
    """Help text with options under their Python names instead of flags."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<!\S)--([a-z][a-z-]*)", lambda m: f"``{m.group(1).replace('-', '_')}``", parts[i])
        parts[i] = re.sub(r"\(--([a-z][a-z-]*)", lambda m: f"(``{m.group(1).replace('-', '_')}``", parts[i])
    return "`".join(parts)


def option_kind(argument: Argument) -> str:
    if argument["is_switch"]:
        return "switch"
    if argument["is_repeatable"]:
        return "list"
    return {"SIZE": "size"}.get(argument["value"], "joined" if argument["value"] in JOINED else "value")


def document(argument: Argument, name: str, only: str = "") -> str:
    text = unmarked((argument["help"] or "").strip())
    if argument["defaults"] and argument["defaults"] != ["false"]:
        text += f" (default: {', '.join(argument['defaults'])})"
    helps = [f"``{one['name']}``: {unmarked(one['help'])}" for one in argument["values"] if one["help"]]
    if helps:
        text += ". " + "; ".join(helps)
    if only:
        text = f"({only}) {text}"
    lines = textwrap.wrap(f"{name}: {text}", 112, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(f"        {line}".rstrip() for line in lines)


class Function:
    """A function to write."""

    def __init__(
        self,
        name: str,
        path: tuple[str, ...],
        result: str,
        about: str,
        positional: tuple[str, ...] = (),
        fixed: tuple[str, ...] = (),
        output: Optional[str] = None,
        without: tuple[str, ...] = (),
        make: Optional[str] = None,
        nodes: bool = False,
        is_method: bool = False,
    ) -> None:
        self.name, self.path, self.result, self.about = name, path, result, about
        self.positional, self.fixed, self.output, self.without = positional, fixed, output, without
        self.make, self.nodes, self.is_method = make or result, nodes, is_method

    def write(self, commands: dict[tuple[str, ...], Command]) -> str:
        command = commands[self.path]
        arguments = {python_name(argument): argument for argument in command["arguments"]}
        left_out = LEFT_OUT | set(self.without)
        inputs = [arguments[name] for name in self.positional]
        options = [
            (name, argument)
            for name, argument in arguments.items()
            if argument["flag"] and argument["name"] not in left_out and name not in left_out
        ]
        lines = []
        parameters = ["self"] if self.is_method else []
        for name, argument in zip(self.positional, inputs):
            kind = annotation(argument)
            parameters.append(f"{name}: {kind}" if argument["is_required"] else f"{name}: Optional[{kind}] = None")
        required = [(n, a) for n, a in options if a["is_required"]]
        optional = [(n, a) for n, a in options if not a["is_required"]]
        parameters.append("*")
        parameters += [f"{name}: {annotation(argument)}" for name, argument in required]
        parameters += [f"{name}: Optional[{annotation(argument)}] = None" for name, argument in optional]
        if self.nodes:
            parameters.append("keep_nodes: bool = False")
        if parameters[-1] == "*":
            parameters.pop()
        indent = "    " if self.is_method else ""
        if self.name == "replay":
            # One machine gives a report, several give a comparison.
            several = "Union[list[MachineLike], tuple[MachineLike, ...]]"
            given = "machine: Optional[Union[MachineLike, Sequence[MachineLike]]] = None"
            for one, result in ((given.replace("Union[MachineLike, Sequence[MachineLike]]", "MachineLike"), "Report"),
                                (f"machine: {several}", "Comparison")):
                lines += ["@overload", f"def {self.name}("]
                lines += [f"    {one if parameter == given else parameter}," for parameter in parameters]
                lines += [f") -> {result}: ..."]
        lines.append(f"{indent}def {self.name}(")
        lines += [f"{indent}    {parameter}," for parameter in parameters]
        lines.append(f"{indent}) -> {self.result}:")
        docs = [f'    """{self.about}', "", f"    {UNITS}", "", "    Arguments:"]
        docs += [document(argument, name) for name, argument in zip(self.positional, inputs)]
        docs += [document(argument, name) for name, argument in [*required, *optional]]
        if self.nodes:
            docs.append("        keep_nodes: Keep a row for each node, for ``Report.node_table()``; otherwise the table is made on demand.")
        docs += ["", "    Raises:", "        ChakramError: One of ``chakram.errors``; it says where the error is.", '    """']
        lines += [f"{indent}{line}".rstrip() for doc in docs for line in doc.split("\n")]
        body = []
        command_words = ", ".join(repr(word) for word in [*self.path, *self.fixed])
        body.append(f"    line = [{command_words}]")
        body.append("    line += _call.options(")
        body.append("        [")
        for name, argument in [*required, *optional]:
            body.append(f'            ("--{argument["flag"]}", {name}, "{option_kind(argument)}"),')
        body.append("        ]")
        body.append("    )")
        for name, argument in zip(self.positional, inputs):
            source = "self.path" if self.is_method and name == "archive" else name
            text = f'    line += _call.inputs({source}, "{name}")'
            if argument["is_required"] or source != name:
                body.append(text)
            else:
                body += [f"    if {name} is not None:", f"    {text}"]
        if self.name == "generate":
            body.append("    return _call.generated(line, machine, output, keep_nodes, dry_run)")
        elif self.nodes:
            body.append(f"    return _call.execute(line, {self.make}, keep_nodes)")
        elif self.output:
            body.append(f"    result = _call.execute(line, {self.make})")
            body.append(f"    result._output = _call.word({self.output}, {self.output!r}) if {self.output} is not None else ''")
            body.append("    return result")
        else:
            body.append(f"    return _call.execute(line, {self.make})")
        lines += [f"{indent}{line}" for line in body]
        text = "\n".join(lines)
        if self.is_method:
            # The archive is the object itself, so the parameter is dropped.
            text = re.sub(r"\n        archive: [^\n]*", "", text, count=1)
            text = re.sub(r"\n            archive: [^\n]*(\n                [^\n]*)*", "", text, count=1)
        return text


def union(
    name: str,
    inner: dict[str, Command],
    selector: str,
    about: str,
    positional: tuple[str, str, str],
    without: set[str],
    result: str,
    body: list[str],
    extra: list[str],
    extra_docs: list[str],
) -> str:
    """Writes a function with the options of several commands; an option may apply to some of them only."""
    options: dict[str, tuple[Argument, list[str]]] = {}
    for source, command in inner.items():
        for argument in command["arguments"]:
            key = python_name(argument)
            if not argument["flag"] or argument["name"] in LEFT_OUT | without or key in without:
                continue
            known = options.setdefault(key, (dict(argument), []))
            known[1].append(source)
            if known[0]["values"] != argument["values"] or known[0]["value"] != argument["value"]:
                known[0]["values"], known[0]["help"] = [], known[0]["help"]
    options = dict(sorted(options.items(), key=lambda option: option[1][0]["is_global"]))
    parameters = [f"{positional[0]}: {positional[1]}", *extra, "*"]
    if "*" in extra:
        parameters = [f"{positional[0]}: {positional[1]}", *extra]
    parameters += [f"{key}: Optional[{annotation(argument)}] = None" for key, (argument, _) in options.items()]
    lines = [f"def {name}("] + [f"    {parameter}," for parameter in parameters] + [f") -> {result}:"]
    lines += [f'    """{about}', "", f"    {UNITS}", "", "    Arguments:", f"        {positional[0]}: {positional[2]}", *extra_docs]
    for key, (argument, sources) in options.items():
        only = ", ".join(sources) if len(sources) < len(inner) else ""
        lines.append(document({**argument, "defaults": []} if only else argument, key, only))
    lines += ["", "    Raises:", "        ChakramError: One of ``chakram.errors``; it says where the error is.", '    """']
    for group, is_global in (("limits", True), ("given", False)):
        lines += [f"    {group} = _call.options(", "        ["]
        for key, (argument, _) in options.items():
            if argument["is_global"] == is_global:
                lines.append(f'            ("--{argument["flag"]}", {key}, "{option_kind(argument)}"),')
        lines += ["        ]", "    )"]
    lines += body
    return "\n".join(lines)


UNITS = 'Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.'

HEAD = '''"""Functions, one for each command. Written by generate_api.py: change that, or the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union, overload

from . import _call
from .results import ArchiveCheck, Comparison, Conversion, Diff, Machine, Report, Result, Score, ServeReport, Sweep

PathLike = Union[str, "os.PathLike[str]"]
MachineLike = Union[str, "os.PathLike[str]", Machine]
'''

JSON = ("--format", "json")

FUNCTIONS = [
    Function(
        "replay", ("replay",), "Any",
        "Replays traces on a machine, or on several to compare them.\n\n"
        "    Returns a :class:`Report`, or for several machines a :class:`Comparison`. Times are in picoseconds.",
        positional=("traces",), fixed=JSON, without=("output", "html", "tile_map"), make="_call.replayed", nodes=True,
    ),
    Function(
        "generate", ("generate",), "Any",
        "Replays a training step of a model on a machine, or writes its traces.\n\n"
        "    With ``machine`` returns a :class:`Report`, with ``dry_run`` the plan, and with ``output`` alone a :class:`Conversion`.",
        positional=("model",), without=("html", "tile_map", "no_links"), make="_call.replayed", nodes=True,
    ),
    Function(
        "diff", ("diff",), "Diff",
        "Compares two jobs, traces or reports.\n\n    ``differs`` names the kinds of differences, ``differences`` lists them.",
        positional=("before", "after"), fixed=JSON, without=("output",),
    ),
    Function(
        "sweep", ("sweep",), "Sweep",
        "Finds the best machine, plan or schedule of a study.\n\n"
        "    With ``output``, a folder keeps a journal, from which ``resume=True`` continues an interrupted sweep.",
        positional=("study",), fixed=JSON,
    ),
    Function(
        "merge_sweep", ("sweep", "merge"), "Result",
        "Joins the shards of a study, and writes the rows to the folder ``output``.",
        positional=("study", "shards"),
    ),
    Function(
        "serve", ("serve",), "ServeReport",
        "Serves requests over time: waiting, batching, latency percentiles.\n\n    ``reports`` has a report for each platform.",
        positional=("scenario",), fixed=JSON, without=("output", "html"),
    ),
    Function(
        "score", ("score",), "Score",
        "Compares predictions with measured runs.", positional=("runs",), fixed=JSON, without=("output",),
    ),
]

ARCHIVE = [
    Function("create", ("archive", "create"), "Result", "Creates the archive, empty.", positional=("archive",), is_method=True),
    Function("add", ("archive", "add"), "Result", "Adds a job's traces, and the files stored with them, as a workload.",
             positional=("archive", "traces"), is_method=True),
    Function("list", ("archive", "list"), "Result", "Lists workloads: ``workloads``.", positional=("archive",), fixed=JSON, is_method=True),
    Function("baseline", ("archive", "baseline"), "Result", "Records predictions of workloads.",
             positional=("archive",), is_method=True),
    Function("check", ("archive", "check"), "ArchiveCheck",
             "Predicts again; raises :class:`ThresholdError` if a prediction changed; its ``result`` says why.",
             positional=("archive",), fixed=JSON, is_method=True),
    Function("verify", ("archive", "verify"), "Result", "Reads every byte and compares it with its checksums.",
             positional=("archive",), is_method=True),
    Function("gc", ("archive", "gc"), "Result", "Drops workloads whose retention is over, and data that no workload uses.",
             positional=("archive",), is_method=True),
]


def inner(commands: dict[tuple[str, ...], Command], outer: str) -> dict[str, Command]:
    return {path[1]: command for path, command in commands.items() if len(path) == 2 and path[0] == outer}


def convert(commands: dict[tuple[str, ...], Command]) -> str:
    sources = {name: command for name, command in inner(commands, "convert").items() if name != "auto"}
    with_format = [name for name, command in sources.items() if any(a["name"] == "format" for a in command["arguments"])]
    known = ", ".join(repr(name) for name in sources)
    body = [
        f"    has_summary = source in ({', '.join(repr(name) for name in with_format)})",
        "    paths = _call.inputs(inputs, \"inputs\")",
        "    if source is None:",
        "        line = [\"convert\", \"auto\", f\"--output={_call.word(output, 'output')}\", *limits, \"--format=json\"]",
        "        line += [*paths, \"--\", *given]",
        "    else:",
        "        line = [\"convert\", source, f\"--output={_call.word(output, 'output')}\", *limits, *given, *paths]",
        "        if has_summary:",
        "            line += [\"--format=json\"]",
        "    result = _call.execute(line, Conversion)",
        "    result._output = _call.word(output, \"output\")",
        "    return result",
    ]
    return union(
        "convert", sources, "source",
        "Converts captures and workloads of other tools to traces.\n\n"
        "    Other calls accept the result in place of the path of the traces. With a ``source`` that has a summary, the result is\n"
        "    the document of the summary; otherwise ``text`` describes the conversion.",
        ("inputs", "Union[PathLike, Sequence[PathLike]]", "Files, folders or prefixes of traces, all of one source."),
        {"output", "threads_"}, "Conversion", body,
        ["output: PathLike", "*", f"source: Optional[Literal[{known}]] = None"],
        ["        output: Prefix of the traces, ``PREFIX.0.et`` and so on, or the file of a single trace.",
         "        source: Source of the inputs; detected from their contents by default."],
    )


def pattern(commands: dict[tuple[str, ...], Command]) -> str:
    patterns = inner(commands, "generate")
    known = ", ".join(repr(name) for name in patterns)
    body = [
        "    line = [\"generate\", pattern, *limits, *given]",
        "    if kind is not None:",
        "        line += _call.inputs(kind, \"kind\")",
        "    return _call.generated(line, machine, output, keep_nodes)",
    ]
    return union(
        "generate_pattern", patterns, "pattern",
        "Replays a traffic pattern on a machine, or writes its traces.",
        ("pattern", f"Literal[{known}]", "The pattern."),
        {"html", "tile_map", "no_links"}, "Any", body,
        ["kind: Optional[str] = None", "*", "keep_nodes: bool = False"],
        ["        kind: Operation of ``collective``, such as ``all-reduce``; traffic of ``p2p``; model of ``palm``.",
         "        keep_nodes: Keep a row for each node, for ``Report.node_table()``; otherwise the table is made on demand."],
    )


def text(describe: str) -> str:
    commands = read(describe)
    parts = [HEAD, convert(commands), *[function.write(commands) for function in FUNCTIONS], pattern(commands)]
    methods = "\n\n".join(function.write(commands) for function in ARCHIVE)
    parts.append(
        'class ArchiveCommands:\n    """Commands of the archive in the file or folder ``path``."""\n\n    path: str\n\n' + methods
    )
    return "\n\n\n".join(parts).replace("\n\n\n\n", "\n\n\n") + "\n"


def native() -> Any:
    """Loads the native half, installed or on PYTHONPATH, without the package, which needs the file written here."""
    for folder in sys.path:
        for path in sorted(Path(folder or ".").glob("chakram/_chakram*.so")):
            spec = importlib.util.spec_from_file_location("_chakram", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise SystemExit("the native half is not built: install the package, or run cargo test -p chakram-python, which builds it")


def main() -> int:
    wanted = text(native().describe())
    if "--check" in sys.argv:
        if TARGET.read_text() != wanted:
            print(f"{TARGET} is not of this command line; BLESS=1 cargo test -p chakram-python writes it", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
