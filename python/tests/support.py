"""Folders and inputs of the tests."""

from __future__ import annotations

import contextlib
import os
import tempfile
import unittest
from pathlib import Path
from typing import Iterator

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "traces"
CASE = TRACES / "data-parallel-8"
CAPTURE = TRACES / "ddp-resnet18" / "capture"

STUDY = """name = "micro-batches"
objective = "time"
strategy = "grid"
[base]
machine = "dgx-h100"
model = "gpt2-small"
tokens = 64
plan.data = 4
plan.batch = 16
compute = "roofline"
[[axis]]
key = "plan.micro_batch"
values = [1, 2, 4]
"""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Changes to a temporary folder, which is deleted afterwards."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


class InFolder(unittest.TestCase):
    """Base of tests that each run in a temporary folder."""

    def setUp(self) -> None:
        inside = folder()
        self.folder = inside.__enter__()
        self.addCleanup(inside.__exit__, None, None, None)
