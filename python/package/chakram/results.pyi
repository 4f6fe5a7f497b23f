from collections.abc import Iterator, KeysView
from typing import Any, Optional

from ._chakram import Nodes as Nodes
from ._chakram import Table as Table

class Document:
    def __init__(self, members: dict[str, Any]) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def keys(self) -> KeysView[str]: ...
    def __getattr__(self, name: str) -> Any: ...
    def __getitem__(self, name: str) -> Any: ...
    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

class TimeParts(Document):
    """Time of an NPU by category, in picoseconds."""

    compute: int
    communication: int
    bubble: int
    memory: int
    host: int
    idle: int

class NpuRow(Document):
    rank: int
    npu: int
    time_ps: TimeParts
    finish_ps: int

class CollectiveRow(Document):
    group: str
    members: int
    kind: str
    algorithm: str

class OperatorRow(Document):
    name: str
    kind: str
    calls: int
    total_ps: int

class MachineName(Document):
    name: str
    npus: int

class Result(Document):
    """What a call returned."""

    schema: str
    tool_version: str
    _output: str
    _name: str
    def __init__(
        self,
        text: bytes,
        notes: Optional[list[str]] = None,
        arguments: Optional[list[str]] = None,
        nodes: Optional[Nodes] = None,
    ) -> None: ...
    @property
    def text(self) -> str: ...
    @property
    def notes(self) -> list[str]: ...
    def table(self, name: str) -> Table: ...
    def tables(self) -> list[str]: ...

class Report(Result):
    machine: MachineName
    ranks: int
    absent_ranks: list[int]
    makespan_ps: int
    captured_ps: Optional[int]
    nodes: int
    messages: int
    mean_ps: TimeParts
    npus: list[NpuRow]
    collectives: list[CollectiveRow]
    operators: list[OperatorRow]
    warnings: list[Any]
    critical_path: Document
    options: Document
    inputs: list[Document]
    def breakdown(self) -> Table: ...
    def node_table(self) -> Nodes: ...
    def page(self) -> str: ...
    def _repr_html_(self) -> str: ...

class Comparison(Result):
    machines: list[Report]
    comparison: list[Document]
    def breakdown(self) -> Table: ...
    def page(self) -> str: ...
    def _repr_html_(self) -> str: ...

class Conversion(Result):
    @property
    def path(self) -> str: ...
    def __fspath__(self) -> str: ...

class Diff(Result):
    of: str
    before: str
    after: str
    differs: Document
    differences: list[Document]

class Sweep(Result):
    study: str
    objectives: list[str]
    front: list[int]
    rows: list[Document]
    def best(self) -> Optional[Document]: ...

class ServeReport(Result):
    reports: list[Document]
    def page(self) -> str: ...
    def _repr_html_(self) -> str: ...

class Score(Result): ...

class Machine(Result):
    machine: Document
    def to_toml(self) -> str: ...

class ArchiveCheck(Result):
    predictions: list[Document]
    failed: list[Document]

def _call(function: Any, *arguments: Any) -> Any: ...
