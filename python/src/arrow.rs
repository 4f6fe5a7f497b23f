//! The Arrow C data interface: structures whose layout Arrow fixes, and the Python capsules that contain them.
//!
//! See <https://arrow.apache.org/docs/format/CDataInterface.html>, `CStreamInterface.html` and
//! `CDataInterface/PyCapsuleInterface.html`. Arrays are shared with the consumer, not copied: each structure keeps
//! its buffers alive until the consumer releases it.

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// Flag of an Arrow schema: the column may contain nulls.
const NULLABLE: i64 = 2;

/// Type of a column (`ArrowSchema` of the C data interface).
#[repr(C)]
#[derive(Debug)]
pub struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut Self,
    dictionary: *mut Self,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// Rows of a column (`ArrowArray` of the C data interface).
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Self,
    dictionary: *mut Self,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

/// A stream of arrays (`ArrowArrayStream` of the C stream interface).
#[repr(C)]
#[derive(Debug)]
pub struct ArrowArrayStream {
    get_schema: Option<unsafe extern "C" fn(*mut Self, *mut ArrowSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut Self, *mut ArrowArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut Self) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut Self)>,
    private_data: *mut c_void,
}

// SAFETY: the memory at the pointers is read-only, and `Arc`s of thread-safe values keep it alive.
unsafe impl Send for ArrowSchema {}
// SAFETY: the memory at the pointers is read-only, and `Arc`s of thread-safe values keep it alive.
unsafe impl Send for ArrowArray {}
// SAFETY: the memory at the pointers is read-only, and `Arc`s of thread-safe values keep it alive.
unsafe impl Send for ArrowArrayStream {}

/// Owner that keeps buffers alive.
pub type ArrowBufferOwner = Arc<dyn Any + Send + Sync>;

/// A column that can share its buffers with a consumer without copying them.
#[derive(Clone)]
pub struct ZeroCopyColumn {
    /// Arrow's format string; for a column with a dictionary, the format of the indices.
    pub format: &'static CStr,
    /// Number of rows.
    pub length: usize,
    /// Number of rows whose value is unknown (null).
    pub unknown: usize,
    /// Addresses of the buffers: first the validity bitmap, which may be a null pointer, then the data.
    pub buffers: Vec<*const c_void>,
    /// Owner of the buffers.
    pub owner: ArrowBufferOwner,
    /// Values that the column's indices refer to.
    pub dictionary: Option<Box<ZeroCopyColumn>>,
}

// SAFETY: the addresses point to read-only memory that the owner keeps alive, and threads may share the owner.
unsafe impl Send for ZeroCopyColumn {}
// SAFETY: the addresses point to read-only memory that the owner keeps alive, and threads may share the owner.
unsafe impl Sync for ZeroCopyColumn {}

/// A table that can be shared with a consumer: columns of equal length.
#[derive(Clone)]
pub struct ZeroCopyTable {
    /// Names of the columns.
    pub names: Arc<[String]>,
    /// Columns, in the order of their names.
    pub columns: Arc<[ZeroCopyColumn]>,
    /// Number of rows.
    pub length: usize,
}

/// Values owned by an Arrow schema, freed on release.
struct ArrowSchemaOwnedParts {
    _name: CString,
    children: Vec<*mut ArrowSchema>,
}

struct ArrowArrayOwnedParts {
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    _owner: Option<ArrowBufferOwner>,
}

fn build_arrow_schema(
    format: &'static CStr,
    name: &str,
    flags: i64,
    children: Vec<*mut ArrowSchema>,
    dictionary: *mut ArrowSchema,
) -> ArrowSchema {
    let name = CString::new(name).unwrap_or_default();
    let mut parts = Box::new(ArrowSchemaOwnedParts {
        _name: name,
        children,
    });
    ArrowSchema {
        format: format.as_ptr(),
        name: parts._name.as_ptr(),
        metadata: ptr::null(),
        flags,
        n_children: parts.children.len() as i64,
        children: parts.children.as_mut_ptr(),
        dictionary,
        release: Some(release_schema),
        private_data: Box::into_raw(parts).cast(),
    }
}

unsafe extern "C" fn release_schema(this: *mut ArrowSchema) {
    // SAFETY: consumers release a structure once, and `schema` created the structure with boxed parts.
    unsafe {
        let parts: Box<ArrowSchemaOwnedParts> = Box::from_raw((*this).private_data.cast());
        let inner = parts.children.iter().copied();
        for inner in inner.chain(Some((*this).dictionary).filter(|inner| !inner.is_null())) {
            drop(Box::from_raw(inner));
        }
        (*this).release = None;
    }
}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the structure has not been released.
            unsafe { release(self) };
        }
    }
}

unsafe extern "C" fn release_array(this: *mut ArrowArray) {
    // SAFETY: consumers release a structure once, and its parts are boxed. If a consumer has moved children out, it has
    // marked them as released.
    unsafe {
        let parts: Box<ArrowArrayOwnedParts> = Box::from_raw((*this).private_data.cast());
        let inner = parts.children.iter().copied();
        for inner in inner.chain(Some((*this).dictionary).filter(|inner| !inner.is_null())) {
            drop(Box::from_raw(inner));
        }
        (*this).release = None;
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the structure has not been released.
            unsafe { release(self) };
        }
    }
}

/// Returns the bits of a column, one per row, with the first row in the lowest bit.
pub fn pack_bits(rows: impl ExactSizeIterator<Item = bool>) -> Vec<u8> {
    let mut bits = vec![0_u8; rows.len().div_ceil(8)];
    for (row, bit) in rows.enumerate() {
        bits[row / 8] |= u8::from(bit) << (row % 8);
    }
    bits
}

/// Returns a buffer's address, which consumers read as untyped.
pub fn untyped_pointer_to_buffer<T>(buffer: &[T]) -> *const c_void {
    buffer.as_ptr().cast()
}

impl ZeroCopyColumn {
    fn schema(&self, name: &str) -> ArrowSchema {
        let dictionary = self.dictionary.as_ref().map_or(ptr::null_mut(), |values| {
            Box::into_raw(Box::new(values.schema("")))
        });
        build_arrow_schema(self.format, name, NULLABLE, Vec::new(), dictionary)
    }

    fn array(&self) -> ArrowArray {
        let dictionary = self.dictionary.as_ref().map_or(ptr::null_mut(), |values| {
            Box::into_raw(Box::new(values.array()))
        });
        let owner = Some(Arc::clone(&self.owner));
        build_arrow_array(
            self.length,
            self.unknown,
            self.buffers.clone(),
            Vec::new(),
            dictionary,
            owner,
        )
    }
}

fn build_arrow_array(
    length: usize,
    unknown: usize,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
    owner: Option<ArrowBufferOwner>,
) -> ArrowArray {
    let mut parts = Box::new(ArrowArrayOwnedParts {
        buffers,
        children,
        _owner: owner,
    });
    ArrowArray {
        length: length as i64,
        null_count: unknown as i64,
        offset: 0,
        n_buffers: parts.buffers.len() as i64,
        n_children: parts.children.len() as i64,
        buffers: parts.buffers.as_mut_ptr(),
        children: parts.children.as_mut_ptr(),
        dictionary,
        release: Some(release_array),
        private_data: Box::into_raw(parts).cast(),
    }
}

impl ZeroCopyTable {
    fn schema(&self) -> ArrowSchema {
        let columns = self.names.iter().zip(self.columns.iter());
        let children = columns.map(|(name, column)| Box::into_raw(Box::new(column.schema(name))));
        build_arrow_schema(c"+s", "", 0, children.collect(), ptr::null_mut())
    }

    fn build_struct_array_of_all_columns(&self) -> ArrowArray {
        let columns = self.columns.iter();
        let children = columns.map(|column| Box::into_raw(Box::new(column.array())));
        let buffers = vec![ptr::null()];
        build_arrow_array(
            self.length,
            0,
            buffers,
            children.collect(),
            ptr::null_mut(),
            None,
        )
    }

    /// Returns a capsule with the type of the rows.
    pub fn schema_capsule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, self.schema(), c"arrow_schema")
    }

    /// Returns two capsules: one with the type of the rows, one with the rows themselves.
    pub fn array_capsules<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let array = PyCapsule::new_with_value(
            py,
            self.build_struct_array_of_all_columns(),
            c"arrow_array",
        )?;
        Ok((self.schema_capsule(py)?, array))
    }

    /// Returns a capsule with a stream that delivers all rows in one array.
    pub fn stream_capsule<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let left = Box::new(ArrowStreamTableAndReadFlag {
            table: self.clone(),
            is_read: false,
        });
        let stream = ArrowArrayStream {
            get_schema: Some(stream_schema),
            get_next: Some(stream_next),
            get_last_error: Some(stream_error),
            release: Some(release_stream),
            private_data: Box::into_raw(left).cast(),
        };
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }
}

struct ArrowStreamTableAndReadFlag {
    table: ZeroCopyTable,
    is_read: bool,
}

unsafe extern "C" fn stream_schema(this: *mut ArrowArrayStream, out: *mut ArrowSchema) -> c_int {
    // SAFETY: consumers call this function before they release the stream, and pass a pointer to memory for an
    // uninitialized structure.
    unsafe {
        let parts: &ArrowStreamTableAndReadFlag = &*(*this).private_data.cast();
        ptr::write(out, parts.table.schema());
    }
    0
}

unsafe extern "C" fn stream_next(this: *mut ArrowArrayStream, out: *mut ArrowArray) -> c_int {
    // SAFETY: the pointer is to memory for an uninitialized structure. A released array marks the end of a stream.
    unsafe {
        let parts: &mut ArrowStreamTableAndReadFlag = &mut *(*this).private_data.cast();
        if std::mem::replace(&mut parts.is_read, true) {
            ptr::write_bytes(out, 0, 1);
        } else {
            ptr::write(out, parts.table.build_struct_array_of_all_columns());
        }
    }
    0
}

unsafe extern "C" fn stream_error(_: *mut ArrowArrayStream) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn release_stream(this: *mut ArrowArrayStream) {
    // SAFETY: consumers release a stream once.
    unsafe {
        drop(Box::<ArrowStreamTableAndReadFlag>::from_raw(
            (*this).private_data.cast(),
        ));
        (*this).release = None;
    }
}

impl Drop for ArrowArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the stream has not been released.
            unsafe { release(self) };
        }
    }
}
