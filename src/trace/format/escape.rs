//! Escapes names from files for terminals and reports.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns true if a terminal or an editor may interpret `c` as a command. Harmful characters are control characters,
/// line and paragraph separators, and invisible or direction-changing characters (the Unicode category Cf).
pub fn is_harmful_character(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// Returns `text` with every harmful character ([`is_harmful_character`]) escaped, for example as `\u{1b}`.
pub fn escape_control_characters(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    if text.bytes().all(is_plain) || !text.contains(is_harmful_character) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        push_escaped_character(&mut out, c);
    }
    Cow::Owned(out)
}

/// Like [`escape_control_characters`], but keeps line ends and tabs.
pub fn escape_control_characters_in_lines(text: &str) -> Cow<'_, str> {
    replace_harmful_characters_with(text, push_escaped_character)
}

/// Returns the JSON text with harmful characters ([`is_harmful_character`]) written as JSON escapes, so that the
/// document's values stay the same.
pub fn escape_harmful_characters_in_json(text: &str) -> Cow<'_, str> {
    replace_harmful_characters_with(text, |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}").expect("a string grows as needed");
        }
    })
}

/// Replaces each harmful character in `text`, except line ends and tabs, with the output of `put`.
fn replace_harmful_characters_with(text: &str, put: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let foreign = |c: char| !matches!(c, '\n' | '\t') && is_harmful_character(c);
    // Most text is printable ASCII, which needs no replacement.
    let is_plain = |byte: u8| matches!(byte, b'\n' | b' '..=b'~');
    if text.bytes().all(is_plain) || !text.contains(foreign) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if foreign(c) {
            put(&mut out, c);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Prepares a name from a file for messages: escapes it ([`escape_control_characters`]) and shortens it
/// to 60 characters.
pub fn escape_and_shorten_name(name: &str) -> String {
    const SHOWN: usize = 60;
    let mut text = String::new();
    for c in name.chars().take(SHOWN) {
        push_escaped_character(&mut text, c);
    }
    if name.chars().nth(SHOWN).is_some() {
        text.push('…');
    }
    text
}

fn push_escaped_character(out: &mut String, c: char) {
    if is_harmful_character(c) {
        write!(out, "\\u{{{:x}}}", c as u32).expect("a string grows as needed")
    } else {
        out.push(c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_messages_leave_the_terminal_alone() {
        assert_eq!(escape_and_shorten_name("aten::mm"), "aten::mm");
        assert_eq!(
            escape_and_shorten_name("\u{1b}[31mred\n"),
            "\\u{1b}[31mred\\u{a}"
        );
        assert_eq!(
            escape_and_shorten_name(&"x".repeat(100)),
            format!("{}…", "x".repeat(60))
        );
        assert_eq!(
            escape_control_characters("a\u{202e}b\u{9b}"),
            "a\\u{202e}b\\u{9b}"
        );
        assert_eq!(
            escape_control_characters_in_lines("a\tb\n\u{9b}"),
            "a\tb\n\\u{9b}"
        );
        // U+E0001 is the surrogate pair D800 + (D0001 >> 10), DC00 + (D0001 & 3FF).
        let json = "{\n\"a\": \"\u{202e}\u{e0001}\"}";
        assert_eq!(
            escape_harmful_characters_in_json(json),
            "{\n\"a\": \"\\u202e\\udb40\\udc01\"}"
        );
        assert!(matches!(
            escape_control_characters("größer 矩阵 ∂"),
            Cow::Borrowed(_)
        ));
    }
}
