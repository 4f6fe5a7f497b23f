"""Wrong uses, and their exceptions."""

from __future__ import annotations

import os
import unittest
from typing import Any, Callable

import chakram
from support import CASE, STUDY, TRACES, InFolder

MACHINE = """name = "mine"
[npu]
memory_bandwidth = "2 TB"
"""

# The call, the exception, and expected fields; a string must be a part of the field.
WRONG_USES: list[tuple[str, Callable[[], Any], type, dict[str, Any]]] = [
    ("no such traces", lambda: chakram.replay("nowhere/job", machine="dgx-h100"),
     chakram.FileError, {"file": "nowhere", "errno": 2, "found": "No such file"}),
    ("no traces in a folder", lambda: chakram.replay("empty", machine="dgx-h100"), chakram.ChakramError, {"file": "empty"}),
    ("a misspelt machine", lambda: chakram.replay(CASE, machine="dgx-h10"), chakram.InputError, {"found": "did you mean `dgx-h100`?", "hint": "preset"}),
    ("a machine file with a wrong unit", lambda: chakram.machine("machine.toml"),
     chakram.InputError, {"file": "machine.toml", "line": 3, "key": "memory_bandwidth"}),
    ("a misspelt model of networks", lambda: chakram.replay(CASE, network="lnks"),
     chakram.UsageError, {"argument": "network", "found": "lnks", "expected": "links"}),
    ("a word for a number", lambda: chakram.replay(CASE, repeat="twice"), chakram.UsageError, {"argument": "repeat"}),
    ("a fraction above 1", lambda: chakram.replay(CASE, compute="roofline", efficiency=1.5),
     chakram.UsageError, {"argument": "efficiency"}),
    ("an object for a path", lambda: chakram.replay(object()), chakram.UsageError, {"argument": "traces"}),
    ("a text for a switch", lambda: chakram.replay(CASE, links="yes"),
     chakram.UsageError, {"argument": "links", "expected": "True, False"}),
    ("an option that does not go with another", lambda: chakram.replay(CASE, fill_domains=True, map="0-7"),
     chakram.UsageError, {"argument": "map", "found": "fill_domains"}),
    ("a rank that is not there", lambda: chakram.replay(CASE, delay={99: "1 ms"}), chakram.InputError, {"found": "99"}),
    ("a machine that is too small", lambda: chakram.generate_pattern("chain", ranks=16, nodes=1, machine="dgx-h100"),
     chakram.InputError, {"found": "16"}),
    ("a broken trace", lambda: chakram.replay("broken.0.et", machine="dgx-h100"),
     chakram.InputError, {"file": "broken.0.et", "offset": int, "record": int}),
    ("nodes that wait for one another", lambda: chakram.replay("stuck", machine="dgx-h100"),
     chakram.DeadlockError, {"rank": int, "node": int, "total": int, "waiting": list}),
    ("a study with an unknown key", lambda: chakram.sweep("study.toml"),
     chakram.InputError, {"file": "study.toml", "line": int}),
    ("a study that is not there", lambda: chakram.sweep("nowhere.toml"), chakram.FileError, {"file": "nowhere.toml"}),
    ("a scenario that is none", lambda: chakram.serve("machine.toml"), chakram.InputError, {"file": "machine.toml"}),
    ("an unknown model", lambda: chakram.generate("gpt2-smal", machine="dgx-h100"), chakram.InputError, {"hint": "preset"}),
    ("a plan that a model cannot have", lambda: chakram.generate("gpt2-small", tensor=7, machine="dgx-h100"),
     chakram.InputError, {"found": "7"}),
    ("nothing to do with a model", lambda: chakram.generate("gpt2-small"), chakram.InputError, {"hint": "machine"}),
    ("too little memory",
     lambda: chakram.generate_pattern("chain", nodes=9_000_000, ranks=1, machine="dgx-h100", max_memory=10_000_000),
     chakram.MemoryLimitError, {"limit_bytes": 10_000_000, "needed_bytes": int}),
    ("output that is an input", lambda: chakram.convert("broken.0.et", "broken.0.et", source="trace"),
     chakram.ChakramError, {"message": "broken.0.et"}),
    ("output in no folder", lambda: chakram.generate_pattern("chain", ranks=1, nodes=1, output="file/job"),
     chakram.ChakramError, {"message": "file"}),
    ("a threshold that is exceeded", lambda: chakram.diff(TRACES / "data-parallel-8", "chain", fail_on="any"),
     chakram.ThresholdError, {"result": chakram.Diff}),
    ("an archive that is none", lambda: chakram.archive("machine.toml").list(), chakram.ChakramError, {"message": "machine.toml"}),
    ("an unknown argument", lambda: chakram.replay(CASE, netwrk="links"), TypeError, {}),
]


class WrongUses(InFolder):
    def setUp(self) -> None:
        super().setUp()
        os.mkdir("empty")
        (self.folder / "file").write_text("no folder")
        (self.folder / "machine.toml").write_text(MACHINE)
        (self.folder / "study.toml").write_text(STUDY.replace("strategy", "stratgy"))
        # The second half of a trace is missing.
        whole = (CASE / "job.0.et").read_bytes()
        (self.folder / "broken.0.et").write_bytes(whole[: len(whole) // 2])
        chakram.generate_pattern("chain", ranks=8, nodes=2, output="chain")
        # Each of two ranks receives before it sends.
        for rank in range(2):
            lines = [
                '{"schema": "chakram.trace.1", "version": "0.0.4"}',
                json_node(1, "receive", 2, {"comm_src": 1 - rank, "comm_dst": rank}),
                json_node(2, "send", 1, {"comm_src": rank, "comm_dst": 1 - rank}, (1,)),
            ]
            (self.folder / f"stuck.{rank}.jsonl").write_text("\n".join(lines) + "\n")
            chakram.convert(f"stuck.{rank}.jsonl", f"stuck.{rank}.et", source="trace")
            os.remove(f"stuck.{rank}.jsonl")

    def test_wrong_uses_raise(self) -> None:
        self.assertGreaterEqual(len(WRONG_USES), 20)
        for name, use, kind, fields in WRONG_USES:
            with self.subTest(name):
                with self.assertRaises(kind) as raised:
                    use()
                error = raised.exception
                self.assertTrue(str(error))
                self.assertNotIn("--", str(error).replace("`chakram", ""), "flags are of command lines")
                for field, expected in fields.items():
                    found = getattr(error, field)
                    if isinstance(expected, type):
                        self.assertIsInstance(found, expected, f"{field}: {error.to_dict()}")
                    elif isinstance(expected, str):
                        self.assertIn(expected, str(found), f"{field}: {error.to_dict()}")
                    else:
                        self.assertEqual(found, expected, f"{field}: {error.to_dict()}")

    def test_errors_are_of_pythons_kinds_too(self) -> None:
        for kind, of in [
            (chakram.UsageError, ValueError), (chakram.InputError, ValueError), (chakram.FileError, OSError),
            (chakram.DeadlockError, RuntimeError), (chakram.TooLongError, OverflowError),
            (chakram.MemoryLimitError, MemoryError),
        ]:
            self.assertTrue(issubclass(kind, of))
            self.assertTrue(issubclass(kind, chakram.ChakramError))


def json_node(node: int, name: str, kind: int, attributes: dict[str, int], data: tuple[int, ...] = ()) -> str:
    import json

    attributes = {"comm_size": 8, "comm_tag": 0, **attributes}
    return json.dumps({
        "id": node,
        "name": name,
        "type": {1: "COMM_SEND_NODE", 2: "COMM_RECV_NODE"}[kind],
        "data_deps": list(data),
        "attr": [{"name": key, "int64_val": value} for key, value in attributes.items()],
    })


if __name__ == "__main__":
    unittest.main()
