//! Native algorithms, by their names in system files.

use std::fmt;

/// A native algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// `true` for one logical ring of all NPUs, `false` for one dimension.
    pub one: bool,
    pub style: Style,
}

/// Style of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Ring,
    /// Direct exchange. The value limits the number of messages in flight, if given.
    Direct(Option<usize>),
    HalvingDoubling,
    DoubleBinaryTree,
}

impl Algorithm {
    /// Parses a name. Returns `None` if no algorithm has this name.
    pub fn parse(name: &str) -> Option<Self> {
        let plain = |style| Some(Self { one: false, style });
        let one = |style| Some(Self { one: true, style });
        let window = |text: &str| match text {
            "" => Some(None),
            _ => text.parse().ok().map(Some),
        };
        match name {
            "ring" => plain(Style::Ring),
            "oneRing" => one(Style::Ring),
            "halvingDoubling" => plain(Style::HalvingDoubling),
            "oneHalvingDoubling" => one(Style::HalvingDoubling),
            "doubleBinaryTree" => plain(Style::DoubleBinaryTree),
            _ => {
                if let Some(rest) = name.strip_prefix("direct") {
                    plain(Style::Direct(window(rest)?))
                } else {
                    one(Style::Direct(window(name.strip_prefix("oneDirect")?)?))
                }
            }
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.style, self.one) {
            (Style::Ring, false) => "ring",
            (Style::Ring, true) => "oneRing",
            (Style::HalvingDoubling, false) => "halvingDoubling",
            (Style::HalvingDoubling, true) => "oneHalvingDoubling",
            (Style::DoubleBinaryTree, _) => "doubleBinaryTree",
            (Style::Direct(_), false) => "direct",
            (Style::Direct(_), true) => "oneDirect",
        };
        f.write_str(name)?;
        match self.style {
            Style::Direct(Some(window)) => write!(f, "{window}"),
            _ => Ok(()),
        }
    }
}
