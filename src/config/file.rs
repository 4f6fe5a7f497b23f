//! Reading of a configuration file up to a maximum size, whatever its path refers to.

use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// The most bytes such a file may have.
const MAX_BYTES: u64 = 4 << 20;

/// The text of the file at `path`.
///
/// # Errors
///
/// If it cannot be read, is not UTF-8 text, or is longer than 4 MiB.
pub(crate) fn read(path: impl AsRef<Path>) -> Result<String, Error> {
    let mut text = String::new();
    let read = File::open(path)?
        // One byte more than allowed, to tell a file of the maximum size from a longer one.
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        Err(Error::new(
            ErrorKind::InvalidData,
            "it is longer than 4 MiB",
        ))
    } else {
        Ok(text)
    }
}
