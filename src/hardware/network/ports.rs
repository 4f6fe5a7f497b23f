//! Port network: an NPU has one port for each dimension, which all operations share. An NPU that is wired to its
//! neighbours, on a ring or mesh, has one port for each side.
//!
//! A port sends one message at a time and receives one at a time, first come, first served: its two directions are
//! servers of [`ContendedNetwork`]. A message passes two servers in each dimension that it crosses: the egress port of
//! the NPU where the message enters the dimension, and the ingress port of the NPU where it leaves. In between,
//! messages do not contend. Each direction of a port is as fast as a link
//! ([`TopologyDimension::link_bandwidth`](crate::topology::TopologyDimension::link_bandwidth)).

use super::contended::{ContendedNetwork, ContendedPortOrLinkSelector, PortsOrLinksOnRoute};

/// The network in which ports are the servers.
pub type PortContentionNetwork<'a> = ContendedNetwork<'a, NpuPortContentionMarker>;

/// Messages contend at the ports of NPUs.
#[derive(Debug)]
pub enum NpuPortContentionMarker {}

impl ContendedPortOrLinkSelector for NpuPortContentionMarker {
    const NAME: &'static str = "ports";
    const REACH: PortsOrLinksOnRoute = PortsOrLinksOnRoute::Ports;
}

#[cfg(test)]
mod tests;
