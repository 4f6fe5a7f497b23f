//! Link network: a message passes all links of its route, and each link carries one message at a time.
//!
//! A link is a server of [`ContendedNetwork`]. Fully connected NPUs are an exception. Along a fully connected
//! dimension, an NPU has one server for all messages that it sends, and one for all messages that it receives.

use super::contended::{ContendedNetwork, ContendedPortOrLinkSelector, PortsOrLinksOnRoute};

/// The network in which every link is a server.
pub type LinkContentionNetwork<'a> = ContendedNetwork<'a, EveryLinkContentionMarker>;

/// Messages contend on every link.
#[derive(Debug)]
pub enum EveryLinkContentionMarker {}

impl ContendedPortOrLinkSelector for EveryLinkContentionMarker {
    const NAME: &'static str = "links";
    const REACH: PortsOrLinksOnRoute = PortsOrLinksOnRoute::Links;
}

#[cfg(test)]
mod tests;
