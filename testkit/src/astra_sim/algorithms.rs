//! Parses native algorithms by their names in system files.

use std::fmt;

/// A native algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeAlgorithmWithOneRingFlag {
    /// `true` if the algorithm runs in one logical ring of all NPUs; `false` if it runs in one dimension.
    pub one: bool,
    pub style: AlgorithmStyle,
}

/// Communication pattern of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlgorithmStyle {
    Ring,
    /// Direct exchange. A value limits the number of messages in flight.
    Direct(Option<usize>),
    HalvingDoubling,
    DoubleBinaryTree,
}

impl NativeAlgorithmWithOneRingFlag {
    /// Parses a name. Returns `None` if no algorithm has this name.
    pub fn parse(name: &str) -> Option<Self> {
        let plain = |style| Some(Self { one: false, style });
        let one = |style| Some(Self { one: true, style });
        let window = |text: &str| match text {
            "" => Some(None),
            _ => text.parse().ok().map(Some),
        };
        match name {
            "ring" => plain(AlgorithmStyle::Ring),
            "oneRing" => one(AlgorithmStyle::Ring),
            "halvingDoubling" => plain(AlgorithmStyle::HalvingDoubling),
            "oneHalvingDoubling" => one(AlgorithmStyle::HalvingDoubling),
            "doubleBinaryTree" => plain(AlgorithmStyle::DoubleBinaryTree),
            _ => {
                if let Some(rest) = name.strip_prefix("direct") {
                    plain(AlgorithmStyle::Direct(window(rest)?))
                } else {
                    one(AlgorithmStyle::Direct(window(
                        name.strip_prefix("oneDirect")?,
                    )?))
                }
            }
        }
    }
}

impl fmt::Display for NativeAlgorithmWithOneRingFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.style, self.one) {
            (AlgorithmStyle::Ring, false) => "ring",
            (AlgorithmStyle::Ring, true) => "oneRing",
            (AlgorithmStyle::HalvingDoubling, false) => "halvingDoubling",
            (AlgorithmStyle::HalvingDoubling, true) => "oneHalvingDoubling",
            (AlgorithmStyle::DoubleBinaryTree, _) => "doubleBinaryTree",
            (AlgorithmStyle::Direct(_), false) => "direct",
            (AlgorithmStyle::Direct(_), true) => "oneDirect",
        };
        f.write_str(name)?;
        match self.style {
            AlgorithmStyle::Direct(Some(window)) => write!(f, "{window}"),
            _ => Ok(()),
        }
    }
}
