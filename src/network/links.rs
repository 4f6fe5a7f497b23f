//! Links: every message passes all links of its way, and each link carries one message at a time.
//!
//! A link is a server of [`Trains`]; the wires between fully connected NPUs have one at either end, for all that
//! the one sends and the other receives along the dimension.

use super::trains::{Detail, Reach, Trains};

/// The network of links.
pub type Links<'a> = Trains<'a, EveryLink>;

/// Messages contend on every link.
#[derive(Debug)]
pub enum EveryLink {}

impl Detail for EveryLink {
    const NAME: &'static str = "links";
    const REACH: Reach = Reach::Links;
}

#[cfg(test)]
mod tests;
