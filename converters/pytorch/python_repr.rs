//! Writes JSON values as Python's `str` does, because Chakra's converter uses this form for
//! attributes.

use super::number;
use std::fmt::Write;

/// Returns `str(json.loads(text))` for valid JSON. Numbers are copied unchanged, so the result differs where Python
/// would shorten a decimal fraction. Shapes and types contain no such fractions.
pub(super) fn json_to_python_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b',' => out.push_str(", "),
            b':' => out.push_str(": "),
            b'"' => {
                while bytes.get(at).is_some_and(|b| *b != b'"') {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at = (at + 1).min(bytes.len());
                append_python_string_repr(&number::unquote_json_value(&text[start..at]), &mut out);
            }
            b'[' | b']' | b'{' | b'}' => out.push(char::from(bytes[start])),
            _ => {
                let word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-');
                while bytes.get(at).is_some_and(word) {
                    at += 1;
                }
                out.push_str(match &text[start..at] {
                    "true" => "True",
                    "false" => "False",
                    "null" => "None",
                    number => number,
                });
            }
        }
    }
    out
}

/// Appends Python's `repr` of a string.
fn append_python_string_repr(string: &str, out: &mut String) {
    let mark = if string.contains('\'') && !string.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(mark);
    for c in string.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("a string takes everything");
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_as_python_does() {
        // Each right-hand side is the output of `print(str(json.loads(left)))`.
        for (json, python) in [
            ("[]", "[]"),
            ("[[4,3,64,64],[]]", "[[4, 3, 64, 64], []]"),
            ("[[[2,65],[]] , 1.5]", "[[[2, 65], []], 1.5]"),
            (
                r#"["Tensor(float)","GenericList[Int,Int]"]"#,
                "['Tensor(float)', 'GenericList[Int,Int]']",
            ),
            (
                r#"["it's","a\"b","'\"","\\\n\u001b"]"#,
                r#"["it's", 'a"b', '\'"', '\\\n\x1b']"#,
            ),
            (
                r#"[true,false,null,{"a":-1}]"#,
                "[True, False, None, {'a': -1}]",
            ),
        ] {
            assert_eq!(json_to_python_text(json), python);
        }
    }
}
