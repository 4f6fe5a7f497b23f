//! Finds the tensors among the arguments of an operator.
//!
//! A tensor is `[id, storage, offset, elements, bytes per element, "device"]`. Only the last entry, a string,
//! distinguishes a tensor from a list of numbers. Types are nested as values are: `GenericList[Tensor(float), Int]` has
//! one entry per element.

/// Simplified type of a value, which only distinguishes tensors from other values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SimplifiedTensorOrOtherType {
    /// A value without tensors.
    Other,
    /// A tensor.
    Tensor,
    /// A list or tuple that contains tensors.
    List(Vec<SimplifiedTensorOrOtherType>),
}

/// Maximum nesting of lists. Deeper nesting means that the text is damaged.
const DEEPEST: usize = 32;

impl SimplifiedTensorOrOtherType {
    /// Parses the types of a list of values. Returns `None` if lists are nested too deeply.
    pub fn parse_argument_types(types: &[impl AsRef<str>]) -> Option<Self> {
        Self::parse_types_up_to_depth(types.iter().map(AsRef::as_ref), DEEPEST)
    }

    fn parse_single_type(text: &str, deeper: usize) -> Option<Self> {
        if text.starts_with("Tensor(") {
            return Some(Self::Tensor);
        }
        // A list has a name before the bracket, as in `GenericList[…]` and `Tuple[…]`.
        let inner = text.split_once('[').filter(|_| !text.starts_with('['));
        match inner.and_then(|(_, inner)| inner.strip_suffix(']')) {
            // The structure of a list matters only if it contains tensors.
            Some(inner) if inner.contains("Tensor(") => Self::parse_types_up_to_depth(
                split_at_commas(inner).into_iter(),
                deeper.checked_sub(1)?,
            ),
            _ => Some(Self::Other),
        }
    }

    fn parse_types_up_to_depth<'t>(
        types: impl Iterator<Item = &'t str>,
        deeper: usize,
    ) -> Option<Self> {
        let types: Option<Vec<Self>> = types.map(|t| Self::parse_single_type(t, deeper)).collect();
        let types = types?;
        let tensors = types.iter().any(|t| *t != Self::Other);
        Some(if tensors {
            Self::List(types)
        } else {
            Self::Other
        })
    }
}

/// Splits `text` at commas outside brackets.
fn split_at_commas(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'(' | b'<' => depth += 1,
            b']' | b')' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A tensor as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorArgStorageAndSize {
    pub id: u64,
    pub storage: u64,
    /// Size of the tensor in bytes, or `None` if it does not fit in 64 bits.
    pub bytes: Option<u64>,
    /// True if the tensor is on a device other than the CPU.
    pub on_device: bool,
}

/// An error in the arguments: the affected text, and a description of the error.
pub(super) type ArgTextAndErrorDescription<'a> = (&'a str, &'static str);

/// Appends the tensors in `values`, which must be valid JSON, to `into`.
pub(super) fn append_tensors<'a>(
    values: &'a str,
    types: &SimplifiedTensorOrOtherType,
    into: &mut Vec<TensorArgStorageAndSize>,
) -> Result<(), ArgTextAndErrorDescription<'a>> {
    match types {
        SimplifiedTensorOrOtherType::Other => Ok(()),
        _ => ArgTextCursor {
            text: values,
            at: 0,
        }
        .append_tensors_in_value(types, into),
    }
}

struct ArgTextCursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> ArgTextCursor<'a> {
    /// Returns the next non-blank byte, or 0 at the end of the text.
    fn peek_non_blank_byte(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(0)
    }

    fn take_byte_if_next(&mut self, byte: u8) -> bool {
        let found = self.peek_non_blank_byte() == byte;
        self.at += usize::from(found);
        found
    }

    fn argument_error<T>(
        &self,
        start: usize,
        what: &'static str,
    ) -> Result<T, ArgTextAndErrorDescription<'a>> {
        Err((&self.text[start..], what))
    }

    fn append_tensors_in_value(
        &mut self,
        of: &SimplifiedTensorOrOtherType,
        into: &mut Vec<TensorArgStorageAndSize>,
    ) -> Result<(), ArgTextAndErrorDescription<'a>> {
        self.peek_non_blank_byte();
        let start = self.at;
        match of {
            SimplifiedTensorOrOtherType::Other => self.skip_value(),
            SimplifiedTensorOrOtherType::Tensor => match self.read_tensor() {
                Some(tensor) => into.push(tensor),
                None => {
                    let what = "a value of type Tensor, expected [id, storage, offset, \
                                elements, bytes per element, \"device\"]";
                    return self.argument_error(start, what);
                }
            },
            SimplifiedTensorOrOtherType::List(types) => {
                let uneven = "a list whose number of values differs from its number of types";
                if !self.take_byte_if_next(b'[') {
                    return self.argument_error(start, "a value of a list type, expected a list");
                }
                for (i, of) in types.iter().enumerate() {
                    if i > 0 && !self.take_byte_if_next(b',') || self.peek_non_blank_byte() == b']'
                    {
                        return self.argument_error(start, uneven);
                    }
                    self.append_tensors_in_value(of, into)?;
                }
                if !self.take_byte_if_next(b']') {
                    return self.argument_error(start, uneven);
                }
            }
        }
        Ok(())
    }

    fn read_tensor(&mut self) -> Option<TensorArgStorageAndSize> {
        if !self.take_byte_if_next(b'[') {
            return None;
        }
        let mut numbers = [0_u64; 5];
        for number in &mut numbers {
            *number = self.read_number()?;
            if !self.take_byte_if_next(b',') {
                return None;
            }
        }
        if self.peek_non_blank_byte() != b'"' {
            return None;
        }
        let device = &self.text.as_bytes()[self.at + 1..];
        // A tensor without memory has an empty device name, so it is on no device.
        let on_device = !device.starts_with(b"cpu") && !device.starts_with(b"\"");
        self.skip_value();
        let [id, storage, _, elements, size] = numbers;
        self.take_byte_if_next(b']')
            .then_some(TensorArgStorageAndSize {
                id,
                storage,
                bytes: elements.checked_mul(size),
                on_device,
            })
    }

    fn read_number(&mut self) -> Option<u64> {
        self.peek_non_blank_byte();
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        self.at += length;
        rest[..length].parse().ok()
    }

    /// Skips a value.
    fn skip_value(&mut self) {
        let bytes = self.text.as_bytes();
        let mut depth = 0_usize;
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'"' => {
                    self.at += 1;
                    while bytes.get(self.at).is_some_and(|b| *b != b'"') {
                        // An escaped quote does not end the string.
                        self.at += 1 + usize::from(bytes[self.at] == b'\\');
                    }
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' if depth == 0 => return,
                b']' | b'}' => depth -= 1,
                b',' if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_tensors(values: &str, types: &[&str]) -> Result<Vec<(u64, u64, u64)>, String> {
        let mut into = Vec::new();
        let types = SimplifiedTensorOrOtherType::parse_argument_types(types).ok_or("too deep")?;
        append_tensors(values, &types, &mut into)
            .map_err(|(at, what)| format!("{what} at {at}"))?;
        let all = into.iter();
        Ok(all
            .map(|t| (t.id, t.storage, t.bytes.unwrap_or(u64::MAX)))
            .collect())
    }

    #[test]
    fn tensors_are_found_by_their_types() {
        // 4096 floats of 4 bytes are 16,384 bytes.
        let tensor = r#"[7,8,0,4096,4,"cpu"]"#;
        let one = vec![(7, 8, 16_384)];
        let all = |values: &str, types: &[&str]| parse_tensors(values, types).unwrap();
        assert_eq!(
            all(&format!("[{tensor},1.5]"), &["Tensor(float)", "Double"]),
            one
        );
        assert_eq!(
            all(
                &format!("[{tensor}]"),
                &["GenericList[Int,Int,Int,Int,Int,String]"]
            ),
            []
        );
        let nested = "GenericList[GenericList[Tensor(c10::complex<float>),Int],None]";
        let values = format!("[\"]\\\"[\", [[ {tensor} , 5], \"<None>\"]]");
        assert_eq!(all(&values, &["String", nested]), one);
        let tuple = "Tuple[String,Tensor(nullptr (uninitialized))]";
        let values = r#"[["a,b", [1669,0,0,0,0,""]]]"#;
        assert_eq!(all(values, &[tuple]), [(1669, 0, 0)]);
        assert_eq!(all("[]", &[]), []);
        assert_eq!(all("[[]]", &["GenericList[]"]), []);
    }

    #[test]
    fn values_that_break_their_types_are_refused() {
        let tensor = r#"[7,8,0,4096,4,"cpu"]"#;
        for (values, types, part) in [
            ("[5]", &["Tensor(float)"][..], "expected [id, storage"),
            (
                "[[1,2,3,4,5,6]]",
                &["Tensor(float)"],
                "expected [id, storage",
            ),
            (
                "[[1,-2,3,4,5,\"\"]]",
                &["Tensor(float)"],
                "expected [id, storage",
            ),
            ("[]", &["Tensor(float)"], "differs from"),
            (&format!("[{tensor},1]"), &["Tensor(float)"], "differs from"),
            (
                &format!("[{tensor}]"),
                &["Tensor(float)", "Int"],
                "differs from",
            ),
            (
                "[\"<None>\"]",
                &["GenericList[Tensor(float)]"],
                "expected a list",
            ),
        ] {
            let error = parse_tensors(values, types).unwrap_err();
            assert!(error.contains(part), "{values}: {error}");
        }
        let deep = "GenericList[".repeat(50) + "Tensor(float)" + &"]".repeat(50);
        assert_eq!(parse_tensors("[]", &[&deep]).unwrap_err(), "too deep");
    }
}
