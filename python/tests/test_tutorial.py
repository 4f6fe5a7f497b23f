"""The book's tutorial: its code runs in order, and prints the output shown below it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import unittest

from support import ROOT, TRACES, InFolder

PAGE = ROOT / "docs" / "tutorials" / "python.md"
BLOCK = re.compile(r"(?:<!-- needs ([^>]*) -->\n)?```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


class Tutorial(InFolder):
    def test_the_tutorial_runs(self) -> None:
        os.symlink(TRACES, "traces")
        os.environ.setdefault("MPLBACKEND", "agg")
        blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
        self.assertGreater(len(blocks), 5)
        names: dict[str, object] = {}
        for needs, code, expected in blocks:
            packages = [name.strip() for name in needs.split(",") if name.strip()]
            if any(importlib.util.find_spec(name) is None for name in packages):
                continue
            printed = io.StringIO()
            with self.subTest(code), contextlib.redirect_stdout(printed):
                exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102
            with self.subTest(code):
                self.assertEqual(printed.getvalue(), expected)


if __name__ == "__main__":
    unittest.main()
