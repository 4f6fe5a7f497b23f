//! Repair of names that a writer did not escape.
//!
//! The observer writes the names of operators as they are, so that a `record_function` with a quote, a backslash or a
//! line break in its name breaks the JSON; so did Kineto up to PyTorch 2.3. Writers put the same key behind the name
//! every time, which shows where the name ends. A name that is legal JSON is left alone, whatever else is wrong.

/// Layout of a writer's elements around their name.
pub(super) struct Layout {
    /// Keys that follow a name directly.
    pub follows: &'static [&'static str],
    /// Keys that cannot occur in a name: were they in it, the name would span elements.
    pub never: &'static [&'static str],
}

/// An element whose name was repaired.
pub(super) struct Mended {
    /// The element up to the quote that ends the name, made legal.
    pub text: Vec<u8>,
    /// Offset at which the original continues behind that quote.
    pub resume: usize,
    /// Offset of the name.
    pub name_at: usize,
    /// The name.
    pub name: String,
}

/// Maximum length of a name whose end is searched.
const LONGEST: usize = 1 << 16;

/// Repairs the name of the element that `text` begins with; `None` if its name is not what is wrong.
pub(super) fn mend(text: &[u8], layout: &Layout) -> Option<Mended> {
    let start = name(text)?;
    let search = &text[..text.len().min(start + LONGEST)];
    let end = (start..search.len())
        .filter(|&i| search[i] == b'"')
        .find(|&i| {
            layout
                .follows
                .iter()
                .any(|key| goes_on(&search[i + 1..], key))
        })?;
    let raw = &text[start..end];
    // A legal name is not what broke the element.
    if serde_json::from_slice::<String>(&text[start - 1..=end]).is_ok() {
        return None;
    }
    // Names come from the program and need not be UTF-8.
    let name = String::from_utf8_lossy(raw).into_owned();
    if layout.never.iter().any(|key| name.contains(key)) {
        return None;
    }
    let mut mended = text[..start - 1].to_vec();
    serde_json::to_writer(&mut mended, &name).ok()?;
    Some(Mended {
        text: mended,
        resume: end + 1,
        name_at: start,
        name,
    })
}

/// Returns the offset of the name of the object at the start of `text`: behind a few plain keys at most.
fn name(text: &[u8]) -> Option<usize> {
    let mut rest = blank(text).strip_prefix(b"{")?;
    // The name is among the first keys of every writer.
    for _ in 0..8 {
        rest = blank(rest).strip_prefix(b"\"")?;
        let close = rest.iter().position(|b| *b == b'"')?;
        let key = &rest[..close];
        rest = blank(blank(&rest[close + 1..]).strip_prefix(b":")?);
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
        rest = blank(&rest[length..]).strip_prefix(b",")?;
    }
    None
}

/// Returns whether `text` continues with `key` and a plain value.
fn goes_on(text: &[u8], key: &str) -> bool {
    let value = || {
        let rest = blank(text).strip_prefix(b",")?;
        let rest = blank(rest).strip_prefix(b"\"")?;
        let rest = rest.strip_prefix(key.as_bytes())?.strip_prefix(b"\"")?;
        blank(blank(rest).strip_prefix(b":")?).first()
    };
    value().is_some_and(|b| b.is_ascii_digit() || *b == b'"' || *b == b'-')
}

fn blank(text: &[u8]) -> &[u8] {
    text.trim_ascii_start()
}
