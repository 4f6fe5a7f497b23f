//! The two analytical networks.

pub mod aware;
pub mod unaware;

use super::agenda::EventAgenda;
use super::config::{NetworkModel as Model, WholeSimulationInput};
use super::post::NumberedMessageKey;
use std::collections::VecDeque;

/// A message in flight.
#[derive(Debug)]
pub struct TransitMessage {
    pub key: NumberedMessageKey,
    /// The devices on the rest of the message's path, beginning with the current device.
    pub route: VecDeque<usize>,
}

/// One of the two networks.
#[derive(Debug)]
pub enum SimulatedNetwork {
    Aware(aware::CongestionAwareNetwork),
    Unaware(unaware::CongestionUnawareNetwork),
}

/// Converts a bandwidth in units of 2^30 bytes per second to bytes per ns.
fn bytes_per_ns(bw: f64) -> f64 {
    bw * f64::from(1 << 30) / 1e9
}

impl SimulatedNetwork {
    pub fn new(config: &WholeSimulationInput) -> Self {
        match config.network {
            Model::Aware => Self::Aware(aware::CongestionAwareNetwork::new(config)),
            Model::Unaware => Self::Unaware(unaware::CongestionUnawareNetwork::new(config)),
        }
    }

    /// Sends a message at the current time.
    pub fn send_message(&mut self, key: NumberedMessageKey, agenda: &mut EventAgenda) {
        match self {
            Self::Aware(aware) => aware.send_message(key, agenda),
            Self::Unaware(unaware) => unaware.schedule_arrival(key, agenda),
        }
    }

    /// Moves a message to the next device on its path. Returns the message's key once the message has reached its
    /// destination.
    pub fn advance_transfer(
        &mut self,
        mut transfer: TransitMessage,
        agenda: &mut EventAgenda,
    ) -> Option<NumberedMessageKey> {
        transfer.route.pop_front();
        match self {
            Self::Aware(aware) if transfer.route.len() > 1 => {
                aware.forward_transfer(transfer, agenda);
                None
            }
            _ => Some(transfer.key),
        }
    }

    /// Handles the end of a transmission on a link, which is then free for the next message.
    pub fn free_link_after_transfer(&mut self, from: usize, to: usize, agenda: &mut EventAgenda) {
        if let Self::Aware(aware) = self {
            aware.free_link_and_start_next_transfer(from, to, agenda);
        }
    }
}
