//! Escaping of names from files for terminals and reports.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a terminal or an editor may interpret `c` as a command: control characters, line and
/// paragraph separators, and invisible or direction-changing characters (the Unicode category Cf).
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// Returns `text` with every character that [`is_harmful`] written as `\u{1b}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte);
    if text.bytes().all(is_plain) || !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        push(&mut out, c);
    }
    Cow::Owned(out)
}

/// Returns a name from a file for messages: [`escaped`], and shortened to 60 characters.
pub fn escape(name: &str) -> String {
    const SHOWN: usize = 60;
    let mut text = String::new();
    for c in name.chars().take(SHOWN) {
        push(&mut text, c);
    }
    if name.chars().nth(SHOWN).is_some() {
        text.push('…');
    }
    text
}

fn push(out: &mut String, c: char) {
    if is_harmful(c) {
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
        assert_eq!(escape("aten::mm"), "aten::mm");
        assert_eq!(escape("\u{1b}[31mred\n"), "\\u{1b}[31mred\\u{a}");
        assert_eq!(escape(&"x".repeat(100)), format!("{}…", "x".repeat(60)));
        assert_eq!(escaped("a\u{202e}b\u{9b}"), "a\\u{202e}b\\u{9b}");
        assert!(matches!(escaped("größer 矩阵 ∂"), Cow::Borrowed(_)));
    }
}
