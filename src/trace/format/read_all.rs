//! Reads a whole file or stream into memory, within the process's memory limits. The reader checks the limits as bytes
//! arrive, before it allocates memory for them.

use chakram_base::bounds;
use std::io::{self, Read};

/// Size in bytes of the first read.
const FIRST: u64 = 1 << 16;

/// Reads `source` to its end; `expected` is the source's likely size in bytes.
///
/// # Errors
///
/// Fails if reading fails, or if the data would exceed the memory limit.
pub fn read_bytes_within_memory_limit(source: impl Read, expected: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append_all_bytes(source, expected, &mut bytes).map(|()| bytes)
}

/// Reads UTF-8 text to its end, like [`read_bytes_within_memory_limit`].
pub fn read_text(source: impl Read, expected: u64) -> io::Result<String> {
    let bytes = read_bytes_within_memory_limit(source, expected)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let found = format!("byte {at} is not UTF-8");
        io::Error::new(io::ErrorKind::InvalidData, found)
    })
}

/// Appends the contents of `source` to `bytes`. If reading fails, `bytes` contains what was read so far.
pub(in crate::format) fn append_all_bytes(
    mut source: impl Read,
    expected: u64,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    // The buffer has room for one byte more than expected, so that the end of the source can be detected without
    // growing the buffer.
    let mut room = expected.saturating_add(1).max(FIRST);
    loop {
        bounds::check_items_fit_memory("the input", room, 1, "smaller inputs")
            .map_err(io::Error::other)?;
        let room_now = usize::try_from(room).map_err(io::Error::other)?;
        bytes.try_reserve_exact(room_now)?;
        let read = (&mut source).take(room).read_to_end(bytes)?;
        if (read as u64) < room {
            return Ok(());
        }
        // Doubles the buffer, up to the memory limit.
        room = (bytes.len() as u64)
            .min(bounds::remaining_bytes())
            .max(FIRST);
    }
}
