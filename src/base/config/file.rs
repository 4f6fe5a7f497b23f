//! Reading of a configuration file up to a maximum size, whatever its path refers to.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, stdin};
use std::path::Path;
use std::sync::OnceLock;

/// The most bytes such a file may have.
const MAX_BYTES: u64 = 4 << 20;

/// File name that stands for standard input.
pub const STANDARD_INPUT: &str = "-";

/// Text of standard input, which can be read once and may be asked for twice.
static PIPED: OnceLock<String> = OnceLock::new();

/// The text of the file at `path`; of standard input if that is `-`.
///
/// # Errors
///
/// If it cannot be read, is not UTF-8 text, or is longer than 4 MiB.
pub fn read(path: impl AsRef<Path>) -> Result<String, Error> {
    if path.as_ref() != Path::new(STANDARD_INPUT) {
        return bounded(File::open(path)?);
    }
    if let Some(text) = PIPED.get() {
        return Ok(text.clone());
    }
    let text = bounded(stdin().lock())?;
    Ok(PIPED.get_or_init(|| text).clone())
}

fn bounded(file: impl Read) -> Result<String, Error> {
    let mut text = String::new();
    let read = file
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
