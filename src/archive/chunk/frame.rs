//! Writes zstd frames. All frames reuse one context, and a block ends where the statistics of the bytes change.

use std::cell::RefCell;
use std::io;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{
    CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, SafeResult, get_error_name,
};

/// Minimum size, in bytes, of a part that gets its own block.
const PART: usize = 1 << 10;
/// Initial capacity for a frame, in bytes.
const ROOM: usize = 1 << 12;

thread_local! {
    /// Reusable compression context; creating its tables takes as long as compressing a chunk.
    static CONTEXT: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

/// Compresses `bytes` into a frame with a checksum.
pub fn compress_frame(bytes: &[u8], level: i32, dictionary: Option<&[u8]>) -> io::Result<Vec<u8>> {
    compress_parts_in_own_blocks(bytes, &[], level, dictionary)
}

/// Compresses `bytes`, whose parts end at `ends` and have different statistics. A zstd block uses one entropy code for
/// all its bytes, so each sufficiently large part gets its own block.
pub fn compress_parts_in_own_blocks(
    bytes: &[u8],
    ends: &[usize],
    level: i32,
    dictionary: Option<&[u8]>,
) -> io::Result<Vec<u8>> {
    let wrong = |result: SafeResult| result.map_err(|code| io::Error::other(get_error_name(code)));
    let mut context: CCtx<'_> = CONTEXT
        .take()
        .or_else(CCtx::try_create)
        .ok_or(io::ErrorKind::OutOfMemory)?;
    wrong(context.set_parameter(CParameter::CompressionLevel(level)))?;
    wrong(context.set_parameter(CParameter::ChecksumFlag(true)))?;
    wrong(context.set_pledged_src_size(Some(bytes.len() as u64)))?;
    if let Some(dictionary) = dictionary {
        wrong(context.ref_prefix(dictionary))?;
        if dictionary.len() + bytes.len() > 1 << 21 {
            wrong(context.set_parameter(CParameter::WindowLog(24)))?;
        }
    }
    let mut out = Vec::with_capacity(ROOM);
    let mut write = |part: &[u8], end| {
        let mut part = InBuffer::around(part);
        loop {
            let written = out.len();
            let mut rest = OutBuffer::around_pos(&mut out, written);
            match wrong(context.compress_stream2(&mut rest, &mut part, end))? {
                0 => return io::Result::Ok(()),
                left => out.reserve(left.max(ROOM)),
            }
        }
    };
    let mut from = 0;
    for (number, &end) in ends.iter().enumerate() {
        let next = ends.get(number + 1).map_or(0, |next| next - end);
        if end - from >= PART || next >= PART {
            write(&bytes[from..end], ZSTD_EndDirective::ZSTD_e_flush)?;
            from = end;
        }
    }
    write(&bytes[from..], ZSTD_EndDirective::ZSTD_e_end)?;
    wrong(context.reset(ResetDirective::SessionAndParameters))?;
    // SAFETY: only the lifetime changes. Until here, the context had the dictionary's lifetime. After the reset, the
    // context no longer refers to the dictionary.
    let context = unsafe { std::mem::transmute::<CCtx<'_>, CCtx<'static>>(context) };
    CONTEXT.set(Some(context));
    Ok(out)
}
