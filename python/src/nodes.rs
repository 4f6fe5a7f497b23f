//! The table of nodes, shared with other libraries as Arrow.

use crate::arrow::{
    ArrowBufferOwner, ZeroCopyColumn, ZeroCopyTable, pack_bits, untyped_pointer_to_buffer,
};
use crate::run::io_error;
use chakram::report::{CodedTextColumn, NodeColumnValues, NodeTable, OptionalNumberColumn};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

/// A row for each node of a replay: its times, and the dependency that the node waited for.
///
/// pandas, Polars, PyArrow and all other libraries with the Arrow PyCapsule interface read this table without copying
/// its rows: ``pandas.DataFrame.from_arrow(nodes)``, ``polars.DataFrame(nodes)``, ``pyarrow.table(nodes)``. Times are
/// whole picoseconds.
#[pyclass(frozen, module = "chakram")]
pub struct Nodes {
    table: Arc<NodeTable>,
    lent: ZeroCopyTable,
}

/// Buffers created for text columns, kept alive while a consumer uses them.
struct TextColumnBuffers {
    offsets: Vec<i64>,
    text: String,
    known: Vec<u8>,
    _table: Arc<NodeTable>,
}

fn lend_node_column(table: &Arc<NodeTable>, column: NodeColumnValues<'_>) -> ZeroCopyColumn {
    let owner: ArrowBufferOwner = Arc::clone(table) as ArrowBufferOwner;
    let whole = |format, length, data| ZeroCopyColumn {
        format,
        length,
        unknown: 0,
        buffers: vec![ptr::null(), data],
        owner: Arc::clone(&owner),
        dictionary: None,
    };
    fn lend_optional_number_column<T>(
        format: &'static CStr,
        column: &OptionalNumberColumn<T>,
        owner: &ArrowBufferOwner,
    ) -> ZeroCopyColumn {
        ZeroCopyColumn {
            format,
            length: column.values.len(),
            unknown: column.unknown,
            buffers: vec![
                untyped_pointer_to_buffer(&column.known),
                untyped_pointer_to_buffer(&column.values),
            ],
            owner: Arc::clone(owner),
            dictionary: None,
        }
    }
    match column {
        NodeColumnValues::U32(numbers) => {
            whole(c"I", numbers.len(), untyped_pointer_to_buffer(numbers))
        }
        NodeColumnValues::U64(numbers) => {
            whole(c"L", numbers.len(), untyped_pointer_to_buffer(numbers))
        }
        NodeColumnValues::PartialU32(column) => lend_optional_number_column(c"I", column, &owner),
        NodeColumnValues::PartialU64(column) => lend_optional_number_column(c"L", column, &owner),
        NodeColumnValues::Text(column) => lend_texts(table, column),
    }
}

/// Shares a dictionary column: the indices are not copied, and each text is shared once.
fn lend_texts(table: &Arc<NodeTable>, column: &CodedTextColumn) -> ZeroCopyColumn {
    let (mut offsets, mut text) = (vec![0], String::new());
    for value in &column.values {
        text += value;
        offsets.push(text.len() as i64);
    }
    let unknown = column.codes.iter().filter(|code| **code < 0).count();
    let mut known = Vec::new();
    if unknown > 0 {
        known = pack_bits(column.codes.iter().map(|code| *code >= 0));
    }
    let made = Arc::new(TextColumnBuffers {
        offsets,
        text,
        known,
        _table: Arc::clone(table),
    });
    let values = ZeroCopyColumn {
        format: c"U",
        length: column.values.len(),
        unknown: 0,
        buffers: vec![
            ptr::null(),
            untyped_pointer_to_buffer(&made.offsets),
            untyped_pointer_to_buffer(made.text.as_bytes()),
        ],
        owner: Arc::clone(&made) as ArrowBufferOwner,
        dictionary: None,
    };
    let validity = match unknown {
        0 => ptr::null(),
        _ => untyped_pointer_to_buffer(&made.known),
    };
    ZeroCopyColumn {
        format: c"i",
        length: column.codes.len(),
        unknown,
        buffers: vec![validity, untyped_pointer_to_buffer(&column.codes)],
        owner: made,
        dictionary: Some(Box::new(values)),
    }
}

impl Nodes {
    /// Prepares the columns of `table` for sharing.
    pub fn new(table: NodeTable) -> Self {
        let table = Arc::new(table);
        let columns = table
            .list_columns()
            .map(|column| lend_node_column(&table, column));
        let lent = ZeroCopyTable {
            names: NodeTable::COLUMNS
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            columns: columns.into_iter().collect(),
            length: table.len(),
        };
        Self { table, lent }
    }

    fn create_file_and_write_table(
        &self,
        path: PathBuf,
        write: impl FnOnce(&NodeTable, &mut dyn Write) -> io::Result<()> + Send,
    ) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        write(&self.table, &mut file)?;
        file.flush()
    }
}

#[pymethods]
impl Nodes {
    fn __len__(&self) -> usize {
        self.table.len()
    }

    fn __repr__(&self) -> String {
        format!(
            "<chakram.Nodes: {} rows of {}>",
            self.table.len(),
            NodeTable::COLUMNS.join(", ")
        )
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<&'static str> {
        NodeTable::COLUMNS.to_vec()
    }

    /// Writes the table to a file of comma-separated values.
    fn write_csv(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written =
            py.detach(|| self.create_file_and_write_table(path, |table, out| table.write_csv(out)));
        written.map_err(|error| io_error(&error))
    }

    /// Writes the table to an Apache Parquet file.
    fn write_parquet(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| {
            self.create_file_and_write_table(path, |table, out| table.write_parquet(out))
        });
        written.map_err(|error| io_error(&error))
    }

    /// Returns the type of the rows, as an Arrow capsule.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        self.lent.schema_capsule(py)
    }

    /// Returns the rows, as two Arrow capsules.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The Arrow interface allows ignoring the requested schema, because a consumer can cast the rows to another
        // type.
        drop(requested_schema);
        self.lent.array_capsules(py)
    }

    /// Returns the rows, as the Arrow capsule of a stream.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        self.lent.stream_capsule(py)
    }
}
