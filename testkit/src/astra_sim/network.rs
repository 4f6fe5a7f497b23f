//! The two analytical networks.

pub mod aware;
pub mod unaware;

use super::agenda::Agenda;
use super::config::{Config, Network as Model};
use super::post::Key;
use std::collections::VecDeque;

/// A message that is in flight.
#[derive(Debug)]
pub struct Transfer {
    pub key: Key,
    /// The remaining devices of its path, beginning with the current one.
    pub route: VecDeque<usize>,
}

/// One of the two networks.
#[derive(Debug)]
pub enum Network {
    Aware(aware::Aware),
    Unaware(unaware::Unaware),
}

/// Converts a bandwidth in units of 2^30 bytes per second to bytes per ns.
fn bytes_per_ns(bw: f64) -> f64 {
    bw * f64::from(1 << 30) / 1e9
}

impl Network {
    pub fn new(config: &Config) -> Self {
        match config.network {
            Model::Aware => Self::Aware(aware::Aware::new(config)),
            Model::Unaware => Self::Unaware(unaware::Unaware::new(config)),
        }
    }

    /// Sends a message at the current time.
    pub fn send(&mut self, key: Key, agenda: &mut Agenda) {
        match self {
            Self::Aware(aware) => aware.send(key, agenda),
            Self::Unaware(unaware) => unaware.send(key, agenda),
        }
    }

    /// Moves a message to its next device. Returns its key if it has reached its destination.
    pub fn arrive(&mut self, mut transfer: Transfer, agenda: &mut Agenda) -> Option<Key> {
        transfer.route.pop_front();
        match self {
            Self::Aware(aware) if transfer.route.len() > 1 => {
                aware.forward(transfer, agenda);
                None
            }
            _ => Some(transfer.key),
        }
    }

    /// Handles the instant at which a link has sent a whole message.
    pub fn link_free(&mut self, from: usize, to: usize, agenda: &mut Agenda) {
        if let Self::Aware(aware) = self {
            aware.link_free(from, to, agenda);
        }
    }
}
