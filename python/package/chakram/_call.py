"""Converts Python arguments to command-line words, and a command's output to results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Iterable, Optional, TypeVar

from . import _chakram
from .errors import ThresholdError, UsageError
from .results import Comparison, Conversion, Report, Result, _call

R = TypeVar("R", bound=Result)


def word(value: Any, name: str) -> str:
    """Returns a value in the form of a command-line word."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Result) and not hasattr(value, "__fspath__"):
        return str(value)
    try:
        path = os.fspath(value)
    except TypeError:
        kind = type(value).__name__
        message = f"`{name}` is {value!r}, a {kind}; expected a text, a number or a path"
        raise UsageError(message, argument=name, found=repr(value)) from None
    return os.fsdecode(path)


def words(value: Any, name: str) -> list[str]:
    """Returns one word for a value, one for each of several, or ``key=value`` for the pairs of a mapping."""
    if isinstance(value, Mapping):
        return [f"{key}={word(inner, name)}" for key, inner in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, Result)):
        return [word(inner, name) for inner in value]
    return [word(value, name)]


def inputs(value: Any, name: str) -> list[str]:
    """Returns inputs as words that cannot be mistaken for options."""
    given = words(value, name)
    return [f"./{one}" if one.startswith("-") and one != "-" else one for one in given]


def option(flag: str, value: Any, kind: str) -> list[str]:
    """Returns the words of an option; ``kind`` is ``switch``, ``list``, ``value``, ``size`` or ``joined`` (values with commas)."""
    if value is None or (kind == "switch" and value is False):
        return []
    name = flag.lstrip("-").replace("-", "_")
    if kind == "switch":
        if value is not True:
            message = f"`{name}` is {value!r}; expected True or False"
            raise UsageError(message, argument=name, found=repr(value), expected="True, False")
        return [flag]
    if kind == "size" and isinstance(value, int) and not isinstance(value, bool):
        return [f"{flag}={value} B"]
    if kind == "joined":
        return [f"{flag}={','.join(words(value, name))}"]
    values = words(value, name) if kind == "list" else [word(value, name)]
    return [f"{flag}={one}" for one in values]


def options(given: Iterable[tuple[str, Any, str]]) -> list[str]:
    """Returns the words of all given options."""
    return [one for flag, value, kind in given for one in option(flag, value, kind)]


def execute(
    arguments: list[str],
    make: Callable[..., R],
    nodes: bool = False,
) -> R:
    """Runs a command and converts its output to a result. Warnings become Python warnings."""
    line = ["chakram", *arguments]
    text, notes, is_exceeded, is_failed, table = _call(_chakram.run, line, nodes)
    result = make(text, notes, line, table)
    for note in notes:
        if note.startswith("warning: "):
            warnings.warn(note[len("warning: ") :], stacklevel=4)
    if is_exceeded or is_failed:
        said = [note[len("error: ") :] for note in notes if note.startswith("error: ")]
        found = "; ".join(said) or "a threshold is exceeded"
        raise ThresholdError(found, result=result, found=found)
    return result


def generated(line: list[str], machine: Any, output: Any, keep_nodes: bool, is_planned: Optional[bool] = None) -> Any:
    """Runs a command that generates a job: with a replay, as a plan only, or to files."""
    if machine is not None or is_planned:
        return execute([*line, "--format=json"], replayed, keep_nodes)
    result = execute(line, Conversion)
    result._output = word(output, "output") if output is not None else ""
    return result


def replayed(text: bytes, notes: list[str], line: list[str], table: Optional[Any]) -> Any:
    """Makes the result of a replay on one machine or several, or of a plan."""
    head = text[:200]
    make: Any = Result
    if b'"chakram.comparison.' in head:
        make = Comparison
    elif b'"chakram.report.' in head:
        make = Report
    return make(text, notes, line, table)
