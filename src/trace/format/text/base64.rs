//! Encodes bytes as padded base64 text, and decodes it.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the base64 encoding of `bytes` to `out`.
pub(super) fn append_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= chunk.len() { digit } else { b'=' });
        }
    }
}

/// Decodes the output of [`append_base64`]; also accepts the URL-safe alphabet and missing padding. Returns `None` for
/// all other text.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for chunk in digits.chunks(4) {
        let mut word = 0_u32;
        for i in 0..4 {
            let digit = match chunk.get(i) {
                None => 0,
                Some(b'-') => 62,
                Some(b'_') => 63,
                Some(digit) => ALPHABET.iter().position(|known| known == digit)?,
            };
            word = word << 6 | digit as u32;
        }
        out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_examples_and_short_lengths_are_encoded_and_decoded() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            append_base64(&mut out, plain.as_bytes());
            assert_eq!(out, coded.as_bytes());
            assert_eq!(decode_base64(coded).unwrap(), plain.as_bytes());
            assert_eq!(
                decode_base64(coded.trim_end_matches('=')).unwrap(),
                plain.as_bytes()
            );
        }
        assert_eq!(
            decode_base64("-_8=").unwrap(),
            decode_base64("+/8=").unwrap()
        );
        for bad in ["Z", "Zg===", "Z g=", "Zm9vé"] {
            assert_eq!(decode_base64(bad), None, "{bad}");
        }
    }
}
