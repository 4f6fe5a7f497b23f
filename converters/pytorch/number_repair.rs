//! Repair of numbers that JSON does not have.
//!
//! Scripts that rewrite captures with Python's `json` write `NaN`, `Infinity` and `-Infinity`, which JSON has no words for.
//! They become `null`: a value that is not there.

/// Tokens that are no JSON.
const TOKENS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// A value whose numbers were repaired.
pub(super) struct RepairedNumbers {
    /// The value, made legal.
    pub text: Vec<u8>,
    /// Length of the original.
    pub length: usize,
    /// Offset of the first of them.
    pub number_at: usize,
    /// The first of them.
    pub number: &'static str,
}

/// Repairs the numbers of the object or list that `text` begins with; `None` if there is nothing to repair, or no end.
pub(super) fn repair_numbers(text: &[u8]) -> Option<RepairedNumbers> {
    let mut mended = Vec::new();
    let mut first = None;
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        let byte = *text.get(at)?;
        let mut length = 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b'"' => {
                length += 1;
                while *text.get(at + length - 1)? != b'"' {
                    length += 1 + usize::from(text[at + length - 1] == b'\\');
                }
            }
            _ => {
                let rest = &text[at..];
                let token = TOKENS
                    .iter()
                    .find(|token| rest.starts_with(token.as_bytes()));
                if let Some(token) = token {
                    first.get_or_insert((at, *token));
                    mended.extend_from_slice(b"null");
                    at += token.len();
                    continue;
                }
            }
        }
        mended.extend_from_slice(text.get(at..at + length)?);
        at += length;
        if depth == 0 && !byte.is_ascii_whitespace() {
            break;
        }
    }
    let (number_at, number) = first?;
    Some(RepairedNumbers {
        text: mended,
        length: at,
        number_at,
        number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_null_outside_of_strings() {
        let text = br#" {"name": "NaN\"", "a": [NaN, -Infinity], "b": Infinity} , {"c": NaN}"#;
        let mended = repair_numbers(text).expect("there are three");
        let expected = r#" {"name": "NaN\"", "a": [null, null], "b": null}"#;
        assert_eq!(String::from_utf8_lossy(&mended.text), expected);
        assert_eq!(&text[mended.length..mended.length + 2], b" ,");
        assert_eq!((mended.number_at, mended.number), (25, "NaN"));
        assert!(text[25..].starts_with(b"NaN,"));
        for (text, why) in [
            ("{\"a\": \"NaN\"}", "a text"),
            ("{\"a\": NaN", "no end"),
            ("{\"a\": \"NaN", "no end of a string"),
            ("{\"a\": \"NaN\\", "no end of an escape"),
            ("]", "no start"),
            ("", "nothing"),
        ] {
            assert!(repair_numbers(text.as_bytes()).is_none(), "{why}");
        }
    }
}
