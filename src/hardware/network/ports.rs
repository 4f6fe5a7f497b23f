//! Ports: an NPU has one port for each dimension, which all operations share; where it is wired to its neighbours,
//! on a ring or a mesh, one for each side.
//!
//! A port sends one message at a time and receives one at a time, first come, first served: its two sides are servers
//! of [`ContendedNetwork`]. A message passes them in every dimension that it crosses: the egress of the NPU where it
//! enters the dimension, and the ingress of the NPU where it leaves it. In between, messages do not contend. Each side
//! is as fast as a link ([`TopologyDimension::link`](crate::topology::TopologyDimension::link)).

use super::contended::{ContendedNetwork, ContentionModel, ContentionScope};

/// The network of ports.
pub type PortNetwork<'a> = ContendedNetwork<'a, PortContention>;

/// Messages contend at the ports of NPUs.
#[derive(Debug)]
pub enum PortContention {}

impl ContentionModel for PortContention {
    const NAME: &'static str = "ports";
    const REACH: ContentionScope = ContentionScope::Ports;
}

#[cfg(test)]
mod tests;
