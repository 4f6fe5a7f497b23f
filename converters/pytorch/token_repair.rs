//! Repairs tokens that are invalid in JSON but that Python and scripts write in place of values.
//!
//! Scripts that rewrite captures with Python's `json` write `NaN`, `Infinity` and `-Infinity`; C++ streams write `nan`,
//! `-nan`, `inf` and `-inf`. JSON cannot express these values, so they become `null`, a missing value. Some scripts
//! write a comma after every element, even after the last one in a list or object, at any depth. The repair removes
//! this comma. A comma that does not follow a value is kept, because a value may be missing.

use super::JsonRepairKind;

/// Tokens that JSON forbids.
const TOKENS: [&str; 7] = ["-Infinity", "Infinity", "NaN", "-nan", "nan", "-inf", "inf"];

/// A JSON value whose invalid tokens were repaired.
pub(super) struct RepairedJsonValue {
    /// The value, converted to valid JSON.
    pub text: Vec<u8>,
    /// Length of the original text, in bytes.
    pub length: usize,
    /// Offset of the first repair in the original text.
    pub first_at: usize,
    /// Kind of the first repair.
    pub what: JsonRepairKind,
    /// The first repaired token; for a comma, the token after it.
    pub token: &'static str,
}

/// Repairs the object or list at the start of `text`. Returns `None` if nothing needs repair, or if the text does not
/// end.
pub(super) fn repair_tokens(text: &[u8]) -> Option<RepairedJsonValue> {
    let mut mended = Vec::new();
    let mut first = None;
    let (mut at, mut depth) = (0, 0_usize);
    // The last non-blank byte so far.
    let mut before = b'[';
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
            b',' if !matches!(before, b'[' | b'{' | b',' | b':') => {
                if let Some(close) = leading_closing_bracket(&text[at + 1..])? {
                    first.get_or_insert((at, JsonRepairKind::Comma, close));
                    before = b',';
                    at += 1;
                    continue;
                }
            }
            _ => {
                let rest = &text[at..];
                let token = TOKENS
                    .iter()
                    .find(|token| rest.starts_with(token.as_bytes()));
                if let Some(token) = token {
                    first.get_or_insert((at, JsonRepairKind::Number, *token));
                    mended.extend_from_slice(b"null");
                    at += token.len();
                    before = b'l';
                    continue;
                }
            }
        }
        mended.extend_from_slice(text.get(at..at + length)?);
        at += length;
        if !byte.is_ascii_whitespace() {
            before = byte;
            if depth == 0 {
                break;
            }
        }
    }
    let (first_at, what, token) = first?;
    Some(RepairedJsonValue {
        text: mended,
        length: at,
        first_at,
        what,
        token,
    })
}

/// Returns the closing bracket of a list or object if `text` begins with it. Returns `None` if the
/// text ends first.
fn leading_closing_bracket(text: &[u8]) -> Option<Option<&'static str>> {
    let next = text.iter().find(|byte| !byte.is_ascii_whitespace())?;
    Some(match next {
        b']' => Some("]"),
        b'}' => Some("}"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinity_become_null_outside_strings() {
        let text = br#" {"name": "NaN\"", "a": [NaN, -Infinity], "b": Infinity} , {"c": NaN}"#;
        let mended = repair_tokens(text).expect("there are three");
        let expected = r#" {"name": "NaN\"", "a": [null, null], "b": null}"#;
        assert_eq!(String::from_utf8_lossy(&mended.text), expected);
        assert_eq!(&text[mended.length..mended.length + 2], b" ,");
        assert_eq!((mended.first_at, mended.token), (25, "NaN"));
        assert!(text[25..].starts_with(b"NaN,"));
        for (text, why) in [
            ("{\"a\": \"NaN\"}", "a text"),
            ("{\"a\": NaN", "no end"),
            ("{\"a\": \"NaN", "no end of a string"),
            ("{\"a\": \"NaN\\", "no end of an escape"),
            ("]", "no start"),
            ("", "nothing"),
        ] {
            assert!(repair_tokens(text.as_bytes()).is_none(), "{why}");
        }
    }

    #[test]
    fn commas_behind_the_last_element_go_and_no_others() {
        let text = br#"{"a": [1, "x,]",], "b": {"c": [{"d": 2, },] , } , }, "#;
        let mended = repair_tokens(text).expect("there are five");
        let expected = r#"{"a": [1, "x,]"], "b": {"c": [{"d": 2 }] } }"#;
        let blanks = |text: &str| text.replace(' ', "");
        let found = String::from_utf8_lossy(&mended.text);
        assert_eq!(blanks(&found), blanks(expected));
        assert_eq!(&text[mended.length..], b", ");
        assert_eq!((mended.first_at, mended.what), (15, JsonRepairKind::Comma));
        assert_eq!(mended.token, "]");
        // In the first three texts, a value may be missing. They are therefore not repaired, and the parser rejects
        // them.
        for text in ["[,]", "{\"a\":,}", "[1,,]", "[1, 2]", "[1,", "[1,  "] {
            let left = repair_tokens(text.as_bytes()).map(|mended| mended.text);
            let legal =
                left.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
            assert!(legal.is_none(), "{text}");
        }
    }
}
