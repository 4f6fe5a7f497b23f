//! Repairs names that the program that wrote the file did not escape.
//!
//! The observer does not escape operator names, so a quote, a backslash or a line break in a `record_function` name
//! makes the JSON invalid. Up to PyTorch 2.3, Kineto also left names unescaped. Each writer always puts the same key
//! after the name, so this key shows where the name ends. A name that is valid JSON is never changed, even if the file
//! has other damage.

/// Keys that a writer puts around an element's name.
pub(super) struct KeysAroundName {
    /// Keys that may directly follow a name.
    pub follows: &'static [&'static str],
    /// Keys that cannot occur inside a name. If one of these keys occurs in a supposed name, the
    /// name spans several elements.
    pub never: &'static [&'static str],
}

/// An element with a repaired name.
pub(super) struct ElementWithRepairedName {
    /// The element's text, up to the closing quote of its name, as valid JSON.
    pub text: Vec<u8>,
    /// Offset in the original text, just after the closing quote of the name.
    pub resume: usize,
    /// Offset of the name in the original text.
    pub name_at: usize,
    /// The repaired name, without escapes.
    pub name: String,
}

/// Maximum length of a name, in bytes.
const LONGEST: usize = 1 << 16;

/// Repairs the name of the element at the start of `text`. Returns `None` if something other than the name caused the
/// error.
pub(super) fn repair_json_element_name(
    text: &[u8],
    layout: &KeysAroundName,
) -> Option<ElementWithRepairedName> {
    let start = find_offset_of_json_name_value(text)?;
    let search = &text[..text.len().min(start + LONGEST)];
    let end = (start..search.len())
        .filter(|&i| search[i] == b'"')
        .find(|&i| {
            layout
                .follows
                .iter()
                .any(|key| continues_with_json_key_and_plain_value(&search[i + 1..], key))
        })?;
    let raw = &text[start..end];
    // The name is valid JSON, so the damage is elsewhere.
    if serde_json::from_slice::<String>(&text[start - 1..=end]).is_ok() {
        return None;
    }
    // Programs choose names freely, so a name may be invalid UTF-8.
    let name = String::from_utf8_lossy(raw).into_owned();
    if layout.never.iter().any(|key| name.contains(key)) {
        return None;
    }
    let mut mended = text[..start - 1].to_vec();
    serde_json::to_writer(&mut mended, &name).ok()?;
    Some(ElementWithRepairedName {
        text: mended,
        resume: end + 1,
        name_at: start,
        name,
    })
}

/// Returns the offset of the name in the object at the start of `text`. Only a few keys with plain values may come
/// before the name.
fn find_offset_of_json_name_value(text: &[u8]) -> Option<usize> {
    let mut rest = trim_leading_blanks(text).strip_prefix(b"{")?;
    // All programs that write traces put the name among the first eight keys.
    for _ in 0..8 {
        rest = trim_leading_blanks(rest).strip_prefix(b"\"")?;
        let close = rest.iter().position(|b| *b == b'"')?;
        let key = &rest[..close];
        rest = trim_leading_blanks(trim_leading_blanks(&rest[close + 1..]).strip_prefix(b":")?);
        if key == b"name" {
            let inside = rest.strip_prefix(b"\"")?;
            return Some(text.len() - inside.len());
        }
        let length = match rest.strip_prefix(b"\"") {
            Some(inside) => {
                let close = inside.iter().position(|b| matches!(b, b'"' | b'\\'))?;
                (inside[close] == b'"').then_some(close + 2)?
            }
            None => rest.iter().position(|b| !b"-.0123456789".contains(b))?,
        };
        rest = trim_leading_blanks(&rest[length..]).strip_prefix(b",")?;
    }
    None
}

/// Returns true if `text` continues with `key` and a value that contains no other values.
fn continues_with_json_key_and_plain_value(text: &[u8], key: &str) -> bool {
    let value = || {
        let rest = trim_leading_blanks(text).strip_prefix(b",")?;
        let rest = trim_leading_blanks(rest).strip_prefix(b"\"")?;
        let rest = rest.strip_prefix(key.as_bytes())?.strip_prefix(b"\"")?;
        trim_leading_blanks(trim_leading_blanks(rest).strip_prefix(b":")?).first()
    };
    value().is_some_and(|b| b.is_ascii_digit() || *b == b'"' || *b == b'-')
}

fn trim_leading_blanks(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}
