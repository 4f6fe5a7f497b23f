"""Results of calls: the documents that the command prints with ``--format json``, with members as attributes.

A document is parsed when a member is first read. Members that end in ``_ps`` are times in whole picoseconds, members that end
in ``_bytes`` are sizes in bytes; ``docs/reference`` describes every document.
"""

from __future__ import annotations

import html
import json
import os
import tempfile
from typing import Any, Callable, Iterator, Optional

from . import _chakram
from ._chakram import Nodes, Table

__all__ = [
    "ArchiveCheck",
    "Comparison",
    "Conversion",
    "Diff",
    "Document",
    "Machine",
    "Nodes",
    "Report",
    "Result",
    "Score",
    "ServeReport",
    "Sweep",
    "Table",
]


def _wrap(value: Any) -> Any:
    if isinstance(value, dict):
        return Document(value)
    if isinstance(value, list):
        return [_wrap(item) for item in value]
    return value


class Document:
    """An object of a document: members are attributes, and also items by name."""

    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members

    def to_dict(self) -> dict[str, Any]:
        """Returns the members as dictionaries, lists, strings and numbers, without a copy."""
        return self._members

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        members = self.to_dict()
        if name in members:
            return _wrap(members[name])
        known = ", ".join(members)
        raise AttributeError(f"{type(self).__name__} has no member {name!r}; it has {known}")

    def __getitem__(self, name: str) -> Any:
        return _wrap(self.to_dict()[name])

    def __contains__(self, name: object) -> bool:
        return name in self.to_dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def keys(self) -> Any:
        """Returns the names of the members, so that ``dict(document)`` works."""
        return self.to_dict().keys()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Document):
            return self.to_dict() == other.to_dict()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __dir__(self) -> list[str]:
        members = [name for name in self.to_dict() if name.isidentifier()]
        return [*super().__dir__(), *members]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()!r})"


class Result(Document):
    """Result of a call: a document, or a text if the command has no document."""

    def __init__(
        self,
        text: bytes,
        notes: Optional[list[str]] = None,
        arguments: Optional[list[str]] = None,
        nodes: Optional[Nodes] = None,
    ) -> None:
        self._text = text
        self._notes = notes or []
        self._arguments = arguments or []
        self._nodes = nodes
        self._parsed: Optional[dict[str, Any]] = None

    def __bool__(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        # Rows of nodes are not pickled; they are made again on demand.
        return {**self.__dict__, "_nodes": None}

    @property
    def text(self) -> str:
        """The output as text: JSON, if the result is a document."""
        return self._text.decode()

    @property
    def notes(self) -> list[str]:
        """Notes and warnings of the call."""
        return self._notes

    def to_dict(self) -> dict[str, Any]:
        """Returns the document; an empty one if the result is a text."""
        if self._parsed is None:
            is_document = self._text.lstrip()[:1] == b"{"
            self._parsed = json.loads(self._text) if is_document else {}
        return self._parsed

    def table(self, name: str) -> Table:
        """Returns the rows of a list of objects, such as ``npus``, as an Arrow table."""
        rows = self.to_dict().get(name)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise KeyError(f"no table {name!r}; there are {', '.join(self.tables()) or 'none'}")
        return _chakram.table(json.dumps(rows))

    def tables(self) -> list[str]:
        """Returns the valid names for :meth:`table`."""
        members = self.to_dict().items()
        return [
            name
            for name, rows in members
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
        ]

    def __repr__(self) -> str:
        return f"<chakram.{type(self).__name__}{self._summary()}>"

    def _summary(self) -> str:
        return ""

    def _again(self, extra: list[str], nodes: bool = False) -> Any:
        return _chakram.run([*self._arguments, *extra], nodes)


def _page(result: Result) -> str:
    """Makes the page of a result. This repeats the call, because charts are drawn only on request."""
    with tempfile.TemporaryDirectory(prefix="chakram-") as folder:
        path = os.path.join(folder, "page.html")
        _call(result._again, [f"--html={path}"])
        with open(path, encoding="utf-8") as page:
            return page.read()


def _frame(page: str) -> str:
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" width="100%" height="640" '
        'style="border:0" sandbox="allow-scripts"></iframe>'
    )


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    from .errors import of_fields

    try:
        return function(*arguments)
    except _chakram.CommandFailed as failed:
        raise of_fields(failed.args[0]) from None


def _milliseconds(picoseconds: Any) -> str:
    return f"{picoseconds / 1e9:,.3f} ms" if isinstance(picoseconds, (int, float)) else "?"


class _WithPage(Result):
    def page(self) -> str:
        """Returns the report as one self-contained HTML page; this repeats the call."""
        return _page(self)

    def _repr_html_(self) -> str:
        return _frame(self.page())


class Report(_WithPage):
    """The result of a replay on one machine (``docs/reference/report.md``)."""

    def breakdown(self) -> Table:
        """Returns a row with the machine and the mean time of an NPU by category, in ps: compute, communication, …."""
        members = self.to_dict()
        return _chakram.table(json.dumps([_breakdown(members)]))

    def node_table(self) -> Nodes:
        """Returns a row for each node, as an Arrow table. Unless the call had ``keep_nodes=True``, this repeats it."""
        if self._nodes is None:
            self._nodes = _call(self._again, [], True)[4]
        if self._nodes is None:
            raise ValueError("the call did not replay one job on one machine, so that there are no nodes")
        return self._nodes

    def _summary(self) -> str:
        members = self.to_dict()
        if "makespan_ps" not in members:
            return ""
        machine = members.get("machine", {}).get("name")
        return f": {members.get('ranks')} ranks on {machine}, {_milliseconds(members['makespan_ps'])}"


def _breakdown(report: dict[str, Any]) -> dict[str, Any]:
    machine = report.get("machine", {}).get("name")
    return {"machine": machine, **report.get("mean_ps", {}), "makespan": report.get("makespan_ps")}


class Comparison(_WithPage):
    """The result of a replay on several machines: ``machines`` has a report for each."""

    def breakdown(self) -> Table:
        """Returns a row for each machine, like :meth:`Report.breakdown`."""
        return _chakram.table(json.dumps([_breakdown(report) for report in self.to_dict()["machines"]]))

    def _summary(self) -> str:
        machines = self.to_dict().get("machines", [])
        times = (f"{one['machine']['name']} {_milliseconds(one.get('makespan_ps'))}" for one in machines)
        return ": " + ", ".join(times)


class Conversion(Result):
    """A conversion and the path of its traces; other calls accept it instead of a path."""

    _output = ""

    @property
    def path(self) -> str:
        """The prefix of the traces, or the file."""
        return self._output

    def __fspath__(self) -> str:
        return self._output

    def _summary(self) -> str:
        return f": {self._output}"


class Diff(Result):
    """Differences between two jobs, traces or reports."""


class Sweep(Result):
    """The points of a study: ``rows``, and ``front``, the numbers of rows that no other row dominates."""

    def best(self) -> Optional[Document]:
        """Returns the first row of the front, which is best by the first objective; ``None`` if no row has an answer."""
        members = self.to_dict()
        for number in members.get("front", [])[:1]:
            return next(Document(row) for row in members["rows"] if row["row"] == number)
        return None

    def _summary(self) -> str:
        members = self.to_dict()
        return f": {len(members.get('rows', []))} rows of {members.get('study')}"


class ServeReport(_WithPage):
    """Times of requests: ``reports`` has a report for each platform."""


class Score(Result):
    """Predictions compared with measured runs."""


class Machine(Result):
    """A machine: ``machine`` is the document, and other calls accept the result instead of a name."""

    _name = ""

    def __str__(self) -> str:
        return self._name

    def to_toml(self) -> str:
        """Returns its file, a template for your own machines."""
        return _call(_chakram.run, ["chakram", "machine", "show", self._name])[0].decode()

    def _summary(self) -> str:
        return f": {self._name}"


class ArchiveCheck(Result):
    """Predictions compared with recorded baselines."""
