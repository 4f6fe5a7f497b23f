//! Maps axes of parallelism to a machine's dimensions, in the syntax of flags and files.

use super::ParallelAxis;
use std::fmt::{self, Display};
use std::str::FromStr;

/// Example of a mapping, for error messages.
pub(super) const EXAMPLE: &str =
    "AXIS@DIMENSION or AXIS:MEMBERS@DIMENSION, for example tp@0, dp:2@0 or pp@infiniband";

/// Places part of an axis, or all of it, along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisPartMapping {
    /// The axis whose members are placed.
    pub axis: ParallelAxis,
    /// Number of members along the dimension. If absent, it is the number of members that the axis's other mappings do
    /// not place.
    pub members: Option<u32>,
    /// The machine's dimension along which the members are placed.
    pub along: MachineDimensionRef,
}

/// A dimension of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineDimensionRef {
    /// A dimension by its index; the innermost is 0.
    Index(u32),
    /// A dimension by its name in the machine file.
    Name(String),
}

impl FromStr for AxisPartMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected {EXAMPLE}");
        let (what, along) = text.trim().split_once('@').ok_or_else(wrong)?;
        let (word, members) = match what.split_once(':') {
            Some((word, members)) => {
                let members = members.trim().parse().ok().filter(|members| *members > 0);
                (word, Some(members.ok_or_else(wrong)?))
            }
            None => (what, None),
        };
        let axis = ParallelAxis::ALL
            .iter()
            .find(|(_, name)| *name == word.trim());
        let (axis, _) = axis.ok_or_else(wrong)?;
        let along = match (along.trim(), along.trim().parse()) {
            ("", _) => return Err(wrong()),
            (_, Ok(index)) => MachineDimensionRef::Index(index),
            (name, Err(_)) => MachineDimensionRef::Name(name.to_owned()),
        };
        Ok(Self {
            axis: *axis,
            members,
            along,
        })
    }
}

impl Display for MachineDimensionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Display for AxisPartMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.members {
            Some(members) => write!(f, "{}:{members}@{}", self.axis, self.along),
            None => write!(f, "{}@{}", self.axis, self.along),
        }
    }
}
