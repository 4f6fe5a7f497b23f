"""Tables: the same rows in files, in Arrow's memory, and in libraries that read it."""

from __future__ import annotations

import csv
import ctypes
import unittest

import chakram
from support import CASE, InFolder


def has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


class Schema(ctypes.Structure):
    """Arrow's structure of a type, with the fields that are read here."""


Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.POINTER(Schema)),
]


class Array(ctypes.Structure):
    """Arrow's structure of rows, with the fields that are read here."""


Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
]


def pointer(capsule: object, name: bytes, kind: type) -> object:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(get(capsule, name), ctypes.POINTER(kind)).contents


class Tables(InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.report = chakram.replay(CASE, keep_nodes=True)
        self.nodes = self.report.node_table()

    def rows(self) -> list[dict[str, str]]:
        self.nodes.write_csv("nodes.csv")
        with open("nodes.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_each_node_has_a_row(self) -> None:
        rows = self.rows()
        self.assertEqual(len(rows), self.report.nodes)
        self.assertEqual(list(rows[0]), self.nodes.column_names)
        self.assertEqual(max(int(row["end_ps"]) for row in rows), self.report.makespan_ps)
        # A node that waits for a dependency or its lane starts when that ends, or after a further delay.
        ends = {(row["rank"], row["node"]): int(row["end_ps"]) for row in rows}
        causes = {"lane": 0, "dependency": 0}
        for row in rows:
            if row["waited_for"] in causes:
                causes[row["waited_for"]] += 1
                self.assertLessEqual(ends[row["waited_rank"], row["waited_node"]], int(row["start_ps"]))
        self.assertGreater(causes["dependency"], 0)

    def test_a_table_is_made_on_demand(self) -> None:
        later = chakram.replay(CASE).node_table()
        self.nodes.write_csv("one.csv")
        later.write_csv("other.csv")
        self.assertEqual((self.folder / "one.csv").read_bytes(), (self.folder / "other.csv").read_bytes())

    def test_the_command_writes_the_same(self) -> None:
        self.nodes.write_parquet("nodes.parquet")
        chakram.run("replay", CASE, "--table", "nodes", "-o", "own.parquet")
        self.assertEqual((self.folder / "nodes.parquet").read_bytes(), (self.folder / "own.parquet").read_bytes())
        printed = chakram.run("replay", CASE, "--table", "nodes").text
        self.rows()
        self.assertEqual(printed, (self.folder / "nodes.csv").read_text())

    def test_arrow_has_the_rows_and_types(self) -> None:
        schema_capsule, array_capsule = self.nodes.__arrow_c_array__()
        schema = pointer(schema_capsule, b"arrow_schema", Schema)
        array = pointer(array_capsule, b"arrow_array", Array)
        self.assertEqual((schema.format, array.length), (b"+s", len(self.nodes)))
        names = [schema.children[i].contents.name.decode() for i in range(schema.n_children)]
        self.assertEqual(names, self.nodes.column_names)
        starts = array.children[names.index("start_ps")].contents
        self.assertEqual(schema.children[names.index("start_ps")].contents.format, b"L")
        numbers = ctypes.cast(starts.buffers[1], ctypes.POINTER(ctypes.c_uint64))
        rows = self.rows()
        self.assertEqual(numbers[: starts.length], [int(row["start_ps"]) for row in rows])
        # Lent twice, the rows have the same address, so they are not copied.
        _, other = self.nodes.__arrow_c_array__()
        again = pointer(other, b"arrow_array", Array).children[names.index("start_ps")].contents
        self.assertEqual(again.buffers[1], starts.buffers[1])
        partner = array.children[names.index("partner_rank")].contents
        self.assertEqual(partner.null_count, sum(row["partner_rank"] == "" for row in rows))

    def test_tables_of_documents_have_types_by_their_values(self) -> None:
        import chakram._chakram as native

        table = native.table('[{"a": 1, "b": {"c": 1.5}, "d": "x"}, {"a": null, "b": {"c": 2}, "e": true}]')
        self.assertEqual(table.column_names, ["a", "b.c", "d", "e"])
        capsule = table.__arrow_c_schema__()
        schema = pointer(capsule, b"arrow_schema", Schema)
        formats = [schema.children[i].contents.format for i in range(schema.n_children)]
        self.assertEqual(formats, [b"l", b"g", b"U", b"b"])
        self.assertEqual(len(native.table("[]")), 0)

    @unittest.skipUnless(has("pyarrow"), "PyArrow is not installed")
    def test_pyarrow_reads_the_loan_and_the_file(self) -> None:
        import pyarrow
        import pyarrow.parquet

        lent = pyarrow.table(self.nodes)
        lent.validate(full=True)
        self.nodes.write_parquet("nodes.parquet")
        read = pyarrow.parquet.read_table("nodes.parquet")
        self.assertEqual(lent.column_names, read.column_names)
        for name in lent.column_names:
            self.assertEqual(lent[name].to_pylist(), read[name].to_pylist(), name)
        rows = self.rows()
        for name in lent.column_names:
            texts = ["" if value is None else str(value) for value in lent[name].to_pylist()]
            self.assertEqual(texts, [row[name] for row in rows], name)

    @unittest.skipUnless(has("pandas") and has("pyarrow"), "pandas is not installed")
    def test_pandas_takes_tables(self) -> None:
        import pandas

        frame = pandas.DataFrame.from_arrow(self.nodes)
        self.assertEqual(len(frame), len(self.nodes))
        self.assertEqual(frame.end_ps.max(), self.report.makespan_ps)
        breakdown = pandas.DataFrame.from_arrow(self.report.breakdown())
        self.assertEqual(breakdown.compute[0], self.report.mean_ps.compute)
        # Columns with Arrow types use the native half's own memory.
        import pyarrow

        _, capsule = self.nodes.__arrow_c_array__()
        array = pointer(capsule, b"arrow_array", Array)
        frame = pyarrow.table(self.nodes).to_pandas(types_mapper=pandas.ArrowDtype)
        for i, name in enumerate(self.nodes.column_names):
            (chunk,) = pyarrow.chunked_array(frame[name].array.__arrow_array__()).chunks
            address = chunk.indices.buffers()[1].address if hasattr(chunk, "indices") else chunk.buffers()[1].address
            self.assertEqual(address, array.children[i].contents.buffers[1], name)

    @unittest.skipUnless(has("polars"), "Polars is not installed")
    def test_polars_takes_tables(self) -> None:
        import polars

        frame = polars.DataFrame(self.nodes)
        self.assertEqual(frame["end_ps"].max(), self.report.makespan_ps)
        npus = polars.DataFrame(self.report.table("npus"))
        self.assertEqual(npus["rank"].to_list(), list(range(8)))


if __name__ == "__main__":
    unittest.main()
