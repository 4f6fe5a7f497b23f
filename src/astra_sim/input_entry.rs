//! A key of a file with its value, in a form that does not depend on the file's format.

/// Value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InputValue {
    /// `null`.
    Null,
    /// `true` or `false`.
    Flag(bool),
    /// Any number.
    Number(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<InputValue>),
    /// An object or, in JSON, a list within a list. No input has such a value.
    Nested,
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct InputEntry {
    /// The key.
    pub(super) key: String,
    /// Line of the key, from 1.
    pub(super) line: usize,
    /// Value.
    pub(super) value: InputValue,
}
