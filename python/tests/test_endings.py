"""Calls that end early, by a signal or by the memory limit, while Python continues."""

from __future__ import annotations

import gzip
import os
import signal
import threading
import time
import unittest

import chakram
from support import STUDY, InFolder

# With all messages simulated, so that it takes minutes.
LONG = {"ranks": 512, "size": "1 GB", "count": 1000, "machine": "dgx-h100x64", "stepwise": True}

LONG_STUDY = STUDY.replace("[1, 2, 4]", "[1]") + """[[axis]]
key = "machine.dimension.nvlink.bandwidth"
from = "50 GB/s"
to = "450 GB/s"
step = "0.01 GB/s"
"""


class Endings(InFolder):
    def interrupted(self, call: object, after: float = 0.3) -> float:
        """Sends SIGINT during a call, and returns the time until the call ended, in s."""
        # Jobs in the background of a shell ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        self.addCleanup(timer.cancel)
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            call()
        return time.monotonic() - begun - after

    def works(self) -> None:
        report = chakram.generate_pattern("chain", ranks=2, nodes=10, machine="dgx-h100")
        self.assertEqual(report.nodes, 20)

    def test_ctrl_c_ends_a_replay(self) -> None:
        late = self.interrupted(lambda: chakram.generate_pattern("collective", "all-reduce", **LONG))
        self.assertLess(late, 5)
        self.works()

    def test_ctrl_c_ends_a_sweep_that_goes_on_later(self) -> None:
        (self.folder / "study.toml").write_text(LONG_STUDY)
        late = self.interrupted(lambda: chakram.sweep("study.toml", output="rows", threads=2), 1.0)
        self.assertLess(late, 5)
        journal = (self.folder / "rows" / "journal.jsonl").read_text()
        self.assertNotIn("interrupted", journal)
        self.works()

    def test_what_a_handler_raises_ends_a_call(self) -> None:
        def ring(*_: object) -> None:
            raise TimeoutError("too slow")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with self.assertRaisesRegex(TimeoutError, "too slow"):
                chakram.generate_pattern("collective", "all-reduce", **LONG)
        finally:
            signal.signal(signal.SIGALRM, before)
        self.works()

    def test_other_threads_go_on(self) -> None:
        beats = []
        done = threading.Event()

        def beat() -> None:
            while not done.wait(0.01):
                beats.append(time.monotonic())

        thread = threading.Thread(target=beat)
        thread.start()
        self.interrupted(lambda: chakram.generate_pattern("collective", "all-reduce", **LONG), 0.5)
        done.set()
        thread.join()
        # About 50 ticks of 10 ms.
        self.assertGreater(len(beats), 10)

    def test_a_replay_that_needs_too_much_memory_fails(self) -> None:
        # A list of several million nodes is rejected before it is made.
        with self.assertRaises(chakram.MemoryLimitError) as refused:
            chakram.generate_pattern("chain", ranks=1, nodes=20_000_000, machine="dgx-h100", max_memory="200 MB")
        self.assertIsInstance(refused.exception, MemoryError)
        self.assertEqual(refused.exception.limit_bytes, 200_000_000)
        self.works()

    def test_memory_that_nothing_foresees_ends_a_run(self) -> None:
        # Graphs grow while they are built: each node takes a few tens of bytes.
        before = chakram.limit_memory("20 MB")
        try:
            with self.assertRaises(chakram.MemoryLimitError) as failed:
                chakram.generate_pattern("data-parallel", ranks=64, layers=2000, machine="dgx-h100x8")
        finally:
            chakram.limit_memory()
        self.assertEqual(before, 20_000_000)
        self.assertGreater(failed.exception.needed_bytes, 0)
        self.works()
        self.assertLess(chakram._chakram.allocated(), 20_000_000)

    def test_compressed_inputs_are_bounded(self) -> None:
        # 20 MB of zeros compress to about a thousandth; above 16 MiB the limit is a factor of 200.
        (self.folder / "zeros.0.et.gz").write_bytes(gzip.compress(bytes(20 << 20)))
        with self.assertRaisesRegex(chakram.ChakramError, "max_ratio"):
            chakram.replay("zeros.0.et.gz", machine="dgx-h100")
        with self.assertRaisesRegex(chakram.ChakramError, "all of them zero"):
            chakram.replay("zeros.0.et.gz", machine="dgx-h100", max_ratio=100_000)
        with self.assertRaisesRegex(chakram.ChakramError, "max_ratio"):
            chakram.replay("zeros.0.et.gz", machine="dgx-h100")


if __name__ == "__main__":
    unittest.main()
