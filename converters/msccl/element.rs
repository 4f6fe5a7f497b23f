//! An element of MSCCL's XML, with its attributes as numbers.

use super::error_at;
use chakram_trace::format::{TraceError, escape_and_shorten_name};
use roxmltree::Node;

/// Maximum number of chunks, GPUs, channels, thread blocks per GPU, and steps per thread block. It is far above MSCCL's
/// own limits.
pub(super) const MOST: u64 = 1 << 15;

/// An element of the XML file.
pub(super) struct XmlElement<'d>(pub(super) Node<'d, 'd>);

impl<'d> XmlElement<'d> {
    pub(super) fn line_and_column(&self) -> (usize, usize) {
        let position = self.0.document().text_pos_at(self.0.range().start);
        (position.row as usize, position.col as usize)
    }

    pub(super) fn tag_name(&self) -> &'d str {
        self.0.tag_name().name()
    }

    pub(super) fn text_attribute(&self, key: &str) -> Result<&'d str, TraceError> {
        self.0.attribute(key).ok_or_else(|| {
            let found = format!("<{}> without `{key}`", self.tag_name());
            error_at(
                self.line_and_column(),
                found,
                "the attributes that msccl-tools write",
            )
        })
    }

    /// Parses the attribute `key` as a number from 0 to `most`; −1 becomes `None`.
    pub(super) fn number_attribute_or_none_if_minus_one(
        &self,
        key: &str,
        most: u64,
    ) -> Result<Option<u64>, TraceError> {
        let text = self.text_attribute(key)?;
        if text == "-1" {
            return Ok(None);
        }
        match text.parse() {
            Ok(number) if number <= most => Ok(Some(number)),
            _ => {
                let found = format!("`{key}` is \"{}\"", escape_and_shorten_name(text));
                let hint = format!("a number from 0 to {most}, or -1 for none");
                Err(error_at(self.line_and_column(), found, hint))
            }
        }
    }

    pub(super) fn number_attribute(&self, key: &str, most: u64) -> Result<u64, TraceError> {
        self.number_attribute_or_none_if_minus_one(key, most)?
            .ok_or_else(|| {
                let found = format!("`{key}` is \"-1\"");
                error_at(
                    self.line_and_column(),
                    found,
                    format!("a number from 0 to {most}"),
                )
            })
    }

    /// Returns the child elements, sorted by their attribute `key`. All of them must be `name` elements, and their
    /// `key` attributes must be 0, 1, 2, ….
    pub(super) fn children_numbered_from_zero(
        &self,
        name: &str,
        key: &str,
    ) -> Result<Vec<Self>, TraceError> {
        let mut inner = Vec::new();
        for element in self.0.children().filter(Node::is_element).map(XmlElement) {
            if element.tag_name() != name {
                let found = format!(
                    "<{}> in <{}>",
                    escape_and_shorten_name(element.tag_name()),
                    self.tag_name()
                );
                return Err(error_at(
                    element.line_and_column(),
                    found,
                    format!("<{name}>"),
                ));
            }
            inner.push((element.number_attribute(key, MOST)?, element));
        }
        inner.sort_by_key(|(number, _)| *number);
        for (place, (number, element)) in (0..).zip(&inner) {
            if *number != place {
                let found =
                    format!("<{name}> with `{key}` {number}, but the next `{key}` is {place}");
                let hint = format!("each {key} from 0 on exactly once");
                return Err(error_at(element.line_and_column(), found, hint));
            }
        }
        Ok(inner.into_iter().map(|(_, element)| element).collect())
    }
}
