//! A key with its value, in a form that is independent of the file's format.

/// Parsed value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InputValue {
    Null,
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<InputValue>),
    /// An object or, in JSON, a list within a list. No valid input contains such a value.
    Nested,
}

/// A key of an input file with its value.
#[derive(Debug)]
pub(super) struct InputEntry {
    pub(super) key: String,
    /// Line of the key, counting from 1.
    pub(super) line: usize,
    pub(super) value: InputValue,
}
