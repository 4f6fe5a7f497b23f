"""Exceptions. Each has the fields of its error; unknown fields are ``None``.

``str(error)`` is the whole message: what is wrong with which input, and what to try.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ChakramError",
    "DeadlockError",
    "FileError",
    "InputError",
    "MemoryLimitError",
    "ThresholdError",
    "TooLongError",
    "UsageError",
]

_FIELDS = (
    "found",
    "expected",
    "hint",
    "argument",
    "key",
    "file",
    "line",
    "column",
    "offset",
    "record",
    "rank",
    "node",
)


class ChakramError(Exception):
    """A call that failed.

    ``found``: what was found. ``expected``: the allowed values. ``hint``: what to try. ``argument``: the invalid argument.
    ``key``: the key in a file, such as ``dimension[1].bandwidth``. ``file``, ``line`` and ``column`` (from 1), ``offset``
    (bytes of the decompressed file), ``record`` (from 0), ``rank`` and ``node`` (its id): the place of the error.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        for name in _FIELDS:
            setattr(self, name, fields.get(name))

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """Returns the message and all known fields."""
        known = {name: getattr(self, name) for name in ("message", *_FIELDS)}
        return {name: value for name, value in known.items() if value is not None}


class UsageError(ChakramError, ValueError):
    """An argument, or its value, that a function does not accept."""


class InputError(ChakramError, ValueError):
    """A trace, machine, study or other input that cannot be used, or arguments that conflict with it."""


class FileError(ChakramError, OSError):
    """A file that cannot be read or written; ``errno`` is the system's error number, if there is one."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.errno = fields.get("errno")
        self.filename = fields.get("file")


class DeadlockError(ChakramError, RuntimeError):
    """A replay in which nodes wait for ever.

    ``completed`` and ``total``: numbers of nodes. ``waiting``: waiting nodes, each a dictionary with ``rank``, ``node``,
    ``name`` and ``why``. ``cycle``: nodes that wait for one another, each for the next.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.completed = fields.get("completed")
        self.total = fields.get("total")
        self.waiting = fields.get("waiting") or []
        self.cycle = fields.get("cycle") or []


class TooLongError(ChakramError, OverflowError):
    """A replay that exceeds 213 days of simulated time."""


class MemoryLimitError(ChakramError, MemoryError):
    """A call that needs more memory than its limit: at least ``needed_bytes``, of ``limit_bytes``."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.needed_bytes = fields.get("needed_bytes")
        self.limit_bytes = fields.get("limit_bytes")


class ThresholdError(ChakramError):
    """A requested threshold is exceeded; ``result`` is the result that the call would have returned."""

    def __init__(self, message: str, result: Any = None, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.result = result


_OF_KIND = {
    "usage": UsageError,
    "input": InputError,
    "file": FileError,
    "deadlock": DeadlockError,
    "too long": TooLongError,
    "memory": MemoryLimitError,
}


def of_fields(fields: dict[str, Any]) -> BaseException:
    """Converts the fields of a failure in the native half to an exception."""
    kind = fields.pop("kind")
    message = fields.pop("message")
    if kind == "interrupted":
        return KeyboardInterrupt(message)
    return _OF_KIND.get(kind, ChakramError)(message, **fields)
