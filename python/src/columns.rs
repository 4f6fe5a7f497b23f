//! Builds tables from JSON documents: rows become columns, which are shared with other libraries through Arrow.

use crate::arrow::{
    ArrowBufferOwner, ZeroCopyColumn, ZeroCopyTable, pack_bits, untyped_pointer_to_buffer,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use serde_json::{Map, Value};
use std::ptr;
use std::sync::Arc;

/// A table of a report, stored by column.
///
/// pandas, Polars, PyArrow and all other libraries with the Arrow PyCapsule interface read this table. Columns whose
/// names end in ``_ps`` contain whole picoseconds, and in ``_bytes`` bytes.
#[pyclass(frozen, module = "chakram")]
pub struct Table {
    lent: ZeroCopyTable,
}

/// Values of a column, and a bit per row that says whether the row has a value.
enum ColumnValues {
    Int(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<u8>),
    Text(Vec<i64>, String),
}

struct ColumnValuesAndValidity {
    known: Vec<u8>,
    values: ColumnValues,
}

/// Adds the members of `row` to `flat`; members of nested objects are named `outer.inner`.
fn flatten_nested_json_object<'v>(
    prefix: &str,
    row: &'v Map<String, Value>,
    flat: &mut Vec<(String, &'v Value)>,
) {
    for (key, value) in row {
        let name = match prefix {
            "" => key.clone(),
            _ => format!("{prefix}.{key}"),
        };
        match value {
            Value::Object(inner) => flatten_nested_json_object(&name, inner, flat),
            _ => flat.push((name, value)),
        }
    }
}

impl ColumnValuesAndValidity {
    fn new(cells: &[Option<&Value>]) -> Self {
        let cells: Vec<Option<&Value>> = cells
            .iter()
            .map(|cell| cell.filter(|value| !value.is_null()))
            .collect();
        let known = || cells.iter().flatten();
        let values = if known().all(|value| value.is_i64()) && known().next().is_some() {
            let numbers = cells.iter().map(|cell| cell.and_then(Value::as_i64));
            ColumnValues::Int(numbers.map(Option::unwrap_or_default).collect())
        } else if known().all(|value| value.is_number()) && known().next().is_some() {
            let numbers = cells.iter().map(|cell| cell.and_then(Value::as_f64));
            ColumnValues::Float(numbers.map(Option::unwrap_or_default).collect())
        } else if known().all(|value| value.is_boolean()) && known().next().is_some() {
            let is_true = |cell: &Option<&Value>| cell.and_then(Value::as_bool) == Some(true);
            ColumnValues::Bool(pack_bits(cells.iter().map(is_true)))
        } else {
            let (mut offsets, mut text) = (vec![0], String::new());
            for cell in &cells {
                match cell {
                    Some(Value::String(value)) => text += value,
                    Some(value) => text += &value.to_string(),
                    None => {}
                }
                offsets.push(text.len() as i64);
            }
            ColumnValues::Text(offsets, text)
        };
        Self {
            known: pack_bits(cells.iter().map(Option::is_some)),
            values,
        }
    }

    fn lend_as_column(self, length: usize) -> ZeroCopyColumn {
        let known: usize = self
            .known
            .iter()
            .map(|byte| byte.count_ones() as usize)
            .sum();
        let own = Arc::new(self);
        let validity = match known == length {
            true => ptr::null(),
            false => untyped_pointer_to_buffer(&own.known),
        };
        let (format, buffers) = match &own.values {
            ColumnValues::Int(values) => (c"l", vec![validity, untyped_pointer_to_buffer(values)]),
            ColumnValues::Float(values) => {
                (c"g", vec![validity, untyped_pointer_to_buffer(values)])
            }
            ColumnValues::Bool(values) => (c"b", vec![validity, untyped_pointer_to_buffer(values)]),
            ColumnValues::Text(offsets, text) => (
                c"U",
                vec![
                    validity,
                    untyped_pointer_to_buffer(offsets),
                    untyped_pointer_to_buffer(text.as_bytes()),
                ],
            ),
        };
        ZeroCopyColumn {
            format,
            length,
            unknown: length - known,
            buffers,
            owner: own as ArrowBufferOwner,
            dictionary: None,
        }
    }
}

/// Converts a JSON array of objects to a table. Members of nested objects become columns ``outer.inner``, lists
/// become JSON texts.
#[pyfunction]
pub fn table(json: &str) -> PyResult<Table> {
    let rows: Vec<Map<String, Value>> =
        serde_json::from_str(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let flat: Vec<Vec<(String, &Value)>> = rows
        .iter()
        .map(|row| {
            let mut flat = Vec::new();
            flatten_nested_json_object("", row, &mut flat);
            flat
        })
        .collect();
    // Column names in the order of their first occurrence.
    let mut names: Vec<String> = Vec::new();
    let mut cells: Vec<Vec<Option<&Value>>> = Vec::new();
    for (row, values) in flat.iter().enumerate() {
        for (place, (name, value)) in values.iter().enumerate() {
            // Most rows of a table have the same members, so try the previous position first.
            let at = match names.get(place) {
                Some(known) if known == name => place,
                _ => match names.iter().position(|known| known == name) {
                    Some(at) => at,
                    None => {
                        names.push(name.clone());
                        cells.push(vec![None; rows.len()]);
                        names.len() - 1
                    }
                },
            };
            cells[at][row] = Some(value);
        }
    }
    let columns = cells
        .iter()
        .map(|cells| ColumnValuesAndValidity::new(cells).lend_as_column(rows.len()));
    Ok(Table {
        lent: ZeroCopyTable {
            columns: columns.collect(),
            names: names.into(),
            length: rows.len(),
        },
    })
}

#[pymethods]
impl Table {
    fn __len__(&self) -> usize {
        self.lent.length
    }

    fn __repr__(&self) -> String {
        format!(
            "<chakram.Table: {} rows of {}>",
            self.lent.length,
            self.lent.names.join(", ")
        )
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.lent.names.to_vec()
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
