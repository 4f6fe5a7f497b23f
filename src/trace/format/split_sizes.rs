//! The bytes that a member of an all-to-all exchanges with each member of its group.

use super::{TraceError, escape_and_shorten_name};

/// Attribute that lists the bytes sent to each member, including the sender itself, in the group's order.
pub const SEND_BYTES: &str = "send_bytes";
/// Attribute that lists the bytes received from each member, in the group's order.
pub const RECEIVE_BYTES: &str = "receive_bytes";

/// The two lists as a trace states them, in texts such as `[512, 0, 1024]`; empty if the trace does not state them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllToAllSplitText<'a> {
    /// Bytes sent to each member, as text.
    pub send: &'a str,
    /// Bytes received from each member, as text.
    pub receive: &'a str,
}

impl AllToAllSplitText<'_> {
    /// Returns true if the trace states neither list.
    pub fn is_empty(&self) -> bool {
        self.send.is_empty() && self.receive.is_empty()
    }

    /// Parses both lists. Errors name the node by its `id`. A missing list is empty.
    pub fn parse(&self, id: u64) -> Result<(Vec<u64>, Vec<u64>), TraceError> {
        Ok((
            parse_size_list(id, SEND_BYTES, self.send)?,
            parse_size_list(id, RECEIVE_BYTES, self.receive)?,
        ))
    }
}

/// Returns the list `bytes` as text.
pub fn format_size_list(bytes: &[u64]) -> String {
    format!("{bytes:?}")
}

fn parse_size_list(id: u64, name: &str, text: &str) -> Result<Vec<u64>, TraceError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let inner = text
        .trim()
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let numbers = inner.and_then(|inner| {
        let numbers = inner
            .split(',')
            .map(|number| number.trim().parse::<u64>().ok());
        numbers.collect::<Option<Vec<u64>>>()
    });
    // The sum of each list must also fit into a signed 64-bit number.
    let sound = |list: &Vec<u64>| {
        let sum = list
            .iter()
            .try_fold(0_u64, |sum, &bytes| sum.checked_add(bytes));
        sum.is_some_and(|sum| sum <= i64::MAX as u64)
    };
    numbers.filter(sound).ok_or_else(|| {
        TraceError::invalid_node(
            id,
            format!("`{name}` is \"{}\", expected a list of bytes", escape_and_shorten_name(text)),
            "write the bytes for each member of the group, such as [512, 0, 1024], less than 2^63 together",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_lists_are_read_back_and_other_text_is_refused() {
        let of = |send| AllToAllSplitText { send, receive: "" }.parse(7);
        let text = format_size_list(&[512, 0, 1024]);
        assert_eq!(of(&text).unwrap(), (vec![512, 0, 1024], vec![]));
        assert_eq!(of("").unwrap(), (vec![], vec![]));
        for wrong in [
            "[]",
            "5",
            "[1 2]",
            "[-1]",
            "[1,]",
            "[9223372036854775807, 1]",
            "[x]",
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(
                error.contains("node 7") && error.contains("`send_bytes`"),
                "{error}"
            );
        }
    }
}
