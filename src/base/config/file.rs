//! Reads a configuration file of limited size. The path may name a pipe.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, stdin};
use std::path::Path;
use std::sync::OnceLock;

/// Maximum size of a configuration file, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// File name that selects standard input.
pub const STANDARD_INPUT: &str = "-";

/// Text of standard input, cached because standard input can be read only once.
static PIPED: OnceLock<String> = OnceLock::new();

/// Returns the text of the file at `path`, or of standard input if `path` is `-`.
///
/// # Errors
///
/// Fails if the file cannot be read, is not UTF-8, or exceeds 4 MiB.
pub fn read_file_or_standard_input(path: impl AsRef<Path>) -> Result<String, Error> {
    if path.as_ref() != Path::new(STANDARD_INPUT) {
        return read_text_within_size_limit(File::open(path)?);
    }
    if let Some(text) = PIPED.get() {
        return Ok(text.clone());
    }
    let text = read_text_within_size_limit(stdin().lock())?;
    Ok(PIPED.get_or_init(|| text).clone())
}

fn read_text_within_size_limit(file: impl Read) -> Result<String, Error> {
    let mut text = String::new();
    let read = file
        // Read one byte more than allowed, to detect a longer file.
        .take(MAX_BYTES + 1)
        .read_to_string(&mut text)?;
    if read as u64 > MAX_BYTES {
        Err(Error::new(
            ErrorKind::InvalidData,
            "the file is longer than 4 MiB",
        ))
    } else {
        Ok(text)
    }
}
