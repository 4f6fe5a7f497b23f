//! Fast UTF-8 check for short texts.

/// Returns `bytes` as text if they are valid UTF-8. The fast path is for short ASCII texts, because nearly all texts in
/// traces are of this kind.
#[inline]
pub(super) fn as_utf8(bytes: &[u8]) -> Option<&str> {
    const TOP: u64 = 0x8080_8080_8080_8080;
    let words = bytes.as_chunks::<8>().0.iter();
    let all = words.fold(0, |all, word| all | u64::from_le_bytes(*word));
    // The last eight bytes may overlap the last whole word, which is harmless. Texts of fewer than eight bytes are
    // combined byte by byte.
    let last = match bytes.last_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().fold(0, |all, byte| all | u64::from(*byte)),
    };
    if (all | last) & TOP == 0 {
        // SAFETY: no byte has its top bit set, so the text is ASCII, which is valid UTF-8.
        return Some(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_utf8_accepts_exactly_valid_utf8() {
        let long = "0123456789abcdefghi";
        for end in 0..long.len() {
            assert_eq!(as_utf8(&long.as_bytes()[..end]), Some(&long[..end]));
            let mut broken = long.as_bytes().to_vec();
            broken[end] = 0xff;
            assert_eq!(as_utf8(&broken), None);
        }
        assert_eq!(as_utf8("größer".as_bytes()), Some("größer"));
    }
}
