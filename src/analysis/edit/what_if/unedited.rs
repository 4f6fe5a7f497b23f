//! Attribute values before all edits, which nodes store so that inverse edits can restore them.

use super::program::NewAttributeValueOrRemoval;

/// Returns the value that an attribute had before all edits; `None` if no edit replaced the value.
pub(super) fn parse_attribute_count_before_edits(
    unedited: Option<&str>,
    name: &str,
) -> Option<u64> {
    ValuesReplacedByEdits::parse(unedited).attribute_count_before_edits(name)
}

/// Values that edits replaced, as text such as `duration_ns=12;num_ops=-`; `-` means that the attribute did not
/// exist.
pub(super) struct ValuesReplacedByEdits<'t>(Vec<(&'t str, &'t str)>);

impl<'t> ValuesReplacedByEdits<'t> {
    pub fn parse(text: Option<&'t str>) -> Self {
        let parts = text.unwrap_or_default().split(';');
        Self(parts.filter_map(|part| part.split_once('=')).collect())
    }

    pub fn attribute_count_before_edits(&self, name: &str) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.and_then(|(_, value)| value.parse().ok())
    }

    pub fn iter_names_and_original_values(
        &self,
    ) -> impl Iterator<Item = (&'t str, NewAttributeValueOrRemoval)> + '_ {
        self.0.iter().map(|&(name, value)| {
            let value = match (value, value.parse()) {
                ("-", _) => NewAttributeValueOrRemoval::Removed,
                (_, Ok(count)) => NewAttributeValueOrRemoval::Count(count),
                (text, _) => NewAttributeValueOrRemoval::Text(text.to_owned()),
            };
            (name, value)
        })
    }
}
