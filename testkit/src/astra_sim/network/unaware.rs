//! The congestion-unaware network of ASTRA-sim 2.x: ns = trunc(hops·latency + bytes / bandwidth), with the
//! values of the lowest dimension in which the two addresses differ.

use super::super::agenda::{Agenda, Event};
use super::super::config::{Config, Dim, Shape};
use super::super::post::Key;
use super::{Transfer, bytes_per_ns};
use std::collections::VecDeque;

/// The dimensions, innermost first.
#[derive(Debug)]
pub struct Unaware {
    dims: Vec<Dim>,
}

impl Unaware {
    pub fn new(config: &Config) -> Self {
        Self {
            dims: config.dims.clone(),
        }
    }

    /// Schedules the arrival. A message from an NPU to itself never arrives.
    pub fn send(&self, key: Key, agenda: &mut Agenda) {
        let (mut from, mut to) = (key.src, key.dst);
        for dim in &self.dims {
            let (a, b) = (from % dim.n, to % dim.n);
            if a != b {
                let hops = match dim.shape {
                    Shape::Ring => a.abs_diff(b).min(dim.n - a.abs_diff(b)),
                    Shape::FullyConnected => 1,
                    Shape::Switch => 2,
                };
                let ns = hops as f64 * dim.lat + key.bytes as f64 / bytes_per_ns(dim.bw);
                let route = VecDeque::from([key.src, key.dst]);
                agenda.event(ns as u64, Event::Arrival(Transfer { key, route }));
                return;
            }
            from /= dim.n;
            to /= dim.n;
        }
    }
}
