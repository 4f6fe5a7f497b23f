//! Roles of groups, as stated by the tool that wrote the trace, such as `tensor 1-128, data 129-256`.
//!
//! Groups are named by numbers, because other tools support no other names. The roles are in the metadata record, which
//! other tools skip.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::str::FromStr;

/// Name of the metadata attribute that states the roles.
pub const ATTRIBUTE: &str = "group_roles";

/// Maps ranges of group numbers to the roles of these groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRoles(BTreeMap<u64, (u64, String)>);

impl GroupRoles {
    /// Sets the role of group `number`, unless the group already has a role.
    pub fn add_role(&mut self, number: u64, role: &str) {
        self.insert_range_unless_known(number, number, role);
    }

    fn insert_range_unless_known(&mut self, first: u64, last: u64, role: &str) {
        let before = self.0.range_mut(..=last).next_back();
        match before {
            Some((_, (end, _))) if *end >= first => {}
            Some((_, (end, known))) if *end + 1 == first && known == role => *end = last,
            _ => {
                self.0.insert(first, (last, role.to_owned()));
            }
        }
    }

    /// Adds the roles that `other` gives to groups without a role here.
    pub fn add_missing_roles_from(&mut self, other: &Self) {
        for (first, (last, role)) in &other.0 {
            self.insert_range_unless_known(*first, *last, role);
        }
    }

    /// Returns the roles with each word replaced by the result of `word`.
    pub fn rename_roles(&self, word: impl Fn(&str) -> String) -> Self {
        let mut roles = Self::default();
        for (first, (last, role)) in &self.0 {
            roles.insert_range_unless_known(*first, *last, &word(role));
        }
        roles
    }

    /// Returns the role of the group whose name is `name`.
    pub fn role_of_group(&self, name: &str) -> Option<&str> {
        let number: u64 = name.parse().ok()?;
        let (_, (last, role)) = self.0.range(..=number).next_back()?;
        (number <= *last).then_some(role)
    }

    /// Returns true if no group has a role.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Display for GroupRoles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, (last, role))) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{role} {first}-{last}")?;
        }
        Ok(())
    }
}

/// Parses any text and skips invalid parts, because roles are only labels.
impl FromStr for GroupRoles {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let mut roles = Self::default();
        for part in text.split(',') {
            let Some((role, numbers)) = part.trim().rsplit_once(' ') else {
                continue;
            };
            let numbers = numbers.split_once('-');
            let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let plain = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.');
            let named = (1..=40).contains(&role.chars().count()) && role.chars().all(plain);
            if let Some((first, last)) = numbers
                && named
                && first <= last
                && last < u64::MAX
            {
                roles.insert_range_unless_known(first, last, role);
            }
        }
        Ok(roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_groups_with_equal_role_are_written_and_read_back() {
        let mut roles = GroupRoles::default();
        for number in 1..=3 {
            roles.add_role(number, "tensor");
        }
        for number in [7, 4, 5] {
            roles.add_role(number, "data");
        }
        let text = "tensor 1-3, data 4-5, data 7-7";
        assert_eq!(roles.to_string(), text);
        assert_eq!(text.parse::<GroupRoles>().unwrap(), roles);
        let of = ["0", "1", "3", "5", "6", "7", "8", "tp"].map(|name| roles.role_of_group(name));
        let [t, d] = [Some("tensor"), Some("data")];
        assert_eq!(of, [None, t, t, d, None, d, None, None]);
        // If a group is given two roles, the first one counts.
        let mut both: GroupRoles = "experts 3-9".parse().unwrap();
        both.add_missing_roles_from(&roles);
        assert_eq!(
            (
                both.role_of_group("2"),
                both.role_of_group("3"),
                both.role_of_group("5")
            ),
            (None, Some("experts"), Some("experts"))
        );
    }

    #[test]
    fn invalid_role_ranges_are_skipped() {
        let text =
            "tensor, 1-2, tp 5-4, tp x-4, tp 1-2-3, a\nb 1-2, tp 0-18446744073709551615, dp 3-4";
        let roles: GroupRoles = text.parse().unwrap();
        assert_eq!(roles.to_string(), "dp 3-4");
        assert!("".parse::<GroupRoles>().unwrap().is_empty());
    }
}
