//! Links: every message passes all links of its way, and each link carries one message at a time.
//!
//! A link is a server of [`ContendedNetwork`]; the wires between fully connected NPUs have one at either end, for all
//! that the one sends and the other receives along the dimension.

use super::contended::{ContendedNetwork, ContentionModel, ContentionScope};

/// The network of links.
pub type LinkNetwork<'a> = ContendedNetwork<'a, LinkContention>;

/// Messages contend on every link.
#[derive(Debug)]
pub enum LinkContention {}

impl ContentionModel for LinkContention {
    const NAME: &'static str = "links";
    const REACH: ContentionScope = ContentionScope::Links;
}

#[cfg(test)]
mod tests;
