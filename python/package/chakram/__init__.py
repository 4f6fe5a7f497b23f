"""Replays machine-learning execution traces on hardware you do not have.

::

    import chakram

    job = chakram.convert("capture/", "job")
    report = chakram.replay(job, machine="dgx-h100")
    print(report.makespan_ps, report.mean_ps.to_dict())

Functions take the options of the commands with the same names, and return their documents as objects. Rows are tables that
pandas, Polars and PyArrow accept through the Arrow PyCapsule interface. Errors are exceptions of :mod:`chakram.errors`. Other
threads continue during a call, and Ctrl-C ends the call. ``docs/tutorials/python.md`` has examples.
"""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from . import _call, _chakram
from .errors import (
    ChakramError,
    DeadlockError,
    FileError,
    InputError,
    MemoryLimitError,
    ThresholdError,
    TooLongError,
    UsageError,
)
from .results import (
    ArchiveCheck,
    Comparison,
    Conversion,
    Diff,
    Document,
    Machine,
    Nodes,
    Report,
    Result,
    Score,
    ServeReport,
    Sweep,
    Table,
)

from ._api import (
    ArchiveCommands,
    convert,
    diff,
    generate,
    generate_pattern,
    merge_sweep,
    replay,
    score,
    serve,
    sweep,
)

__version__: str = _chakram.__version__

__all__ = [
    "Archive",
    "ArchiveCheck",
    "ChakramError",
    "Comparison",
    "Conversion",
    "DeadlockError",
    "Diff",
    "Document",
    "FileError",
    "InputError",
    "Machine",
    "MemoryLimitError",
    "Nodes",
    "Report",
    "Result",
    "Score",
    "ServeReport",
    "Sweep",
    "Table",
    "ThresholdError",
    "TooLongError",
    "UsageError",
    "archive",
    "convert",
    "diff",
    "generate",
    "generate_pattern",
    "limit_memory",
    "machine",
    "machines",
    "merge_sweep",
    "replay",
    "run",
    "score",
    "serve",
    "sweep",
]

_Path = Union[str, "os.PathLike[str]"]


def machine(name: _Path) -> Machine:
    """Returns a machine: a preset such as ``dgx-h100x4``, or a file.

    Raises:
        InputError: No machine has this name, or the file is invalid; ``file``, ``line`` and ``key`` give the place.
    """
    named = _call.word(name, "name")
    result = _call.execute(["machine", "show", "--format", "json", *_call.inputs(named, "name")], Machine)
    result._name = named
    return result


def machines() -> Result:
    """Returns the built-in machines: ``machines`` has a document for each, ``table("machines")`` a row."""
    return _call.execute(["machine", "list", "--format", "json"], Result)


class Archive(ArchiveCommands):
    """An archive of workloads in one file or folder; methods are commands on it."""

    def __init__(self, path: _Path) -> None:
        self.path = _call.word(path, "path")

    def __repr__(self) -> str:
        return f"<chakram.Archive: {self.path}>"

    def __fspath__(self) -> str:
        return self.path

    def workload(self, name: str) -> str:
        """Returns the path of a workload; other calls accept it instead of traces."""
        return f"{self.path}::{name}"

    def show(self, name: str) -> Result:
        """Returns all stored facts about a workload."""
        line = ["archive", "show", "--format", "json", *_call.inputs(self.workload(name), "name")]
        return _call.execute(line, Result)

    def extract(self, name: str, output: _Path) -> Conversion:
        """Writes the files of a workload into the folder ``output``."""
        to = _call.word(output, "output")
        line = ["archive", "extract", f"--output={to}", *_call.inputs(self.workload(name), "name")]
        result = _call.execute(line, Conversion)
        result._output = to
        return result

    def merge(self, *others: _Path) -> Result:
        """Adds the workloads of other archives."""
        paths = [path for other in (self, *others) for path in _call.inputs(other, "others")]
        return _call.execute(["archive", "merge", *paths], Result)


def archive(path: _Path) -> Archive:
    """Returns the archive in this file or folder; :meth:`Archive.create` creates one that does not exist."""
    return Archive(path)


def run(*arguments: Any, keep_nodes: bool = False) -> Result:
    """Runs any command with command-line arguments, and returns its output: ``run("inspect", job, "--format", "json")``.

    Raises:
        ChakramError: The same errors as the function for the command.
    """
    return _call.execute([_call.word(one, "arguments") for one in arguments], Result, keep_nodes)


def limit_memory(size: Optional[Union[str, int]] = None) -> int:
    """Limits the memory of all calls together, given as ``"4 GB"`` or in bytes; returns the limit in bytes.

    ``None``, the default, means three quarters of the memory available to the machine, the container or the process. A call
    that needs more fails with :class:`MemoryLimitError`. Memory of Python itself does not count.

    Raises:
        ValueError: The text is not a size.
    """
    text = None if size is None else (f"{size} B" if isinstance(size, int) else size)
    return _chakram.limit_memory(text)
