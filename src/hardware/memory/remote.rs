//! Remote loads and stores in flight, for every kind of attachment.

use super::{
    ChunkArrivalAtNpuPort, MemoryAccessEnd, MemoryNetworkAttachment, RemoteMemory,
    RemoteMemoryAccess, channel_stream, channels, chunked_access, fair_sharing, pool_layout,
};
use chakram_base::units::{Bandwidth, Span, Time, UnroundedBufferShare};
use std::fmt;

/// A model of remote memory that the caller implements.
pub trait UserRemoteMemoryModel: fmt::Debug {
    /// Begins an access of `access.bytes` bytes by `access.npu` at `now`. Returns the end of the access, which must not
    /// be before `now`. Accesses arrive in ascending order of time and, at the same instant, in the order in which they
    /// take their lanes.
    fn begin_access_and_return_end(&mut self, now: Time, access: &RemoteMemoryAccess) -> Time;
}

/// State of a machine's remote memory during a replay: its channels or links.
#[derive(Debug)]
pub struct RemoteMemorySimulation {
    latency: Span,
    /// Bandwidth of a channel, or of the ports after it if that is lower.
    bandwidth: Bandwidth,
    whole_ns: bool,
    state: RemoteMemoryModelByAttachment,
    ports: PortBetweenChannelAndNpu,
}

#[derive(Debug)]
enum RemoteMemoryModelByAttachment {
    Channels(channels::MemoryChannelFreeTimes),
    Shared(Box<fair_sharing::FairSharedPoolAccesses>),
    /// A model that the caller implements.
    Own(Box<dyn UserRemoteMemoryModel>),
}

/// The network port between a channel and the NPU, if any.
#[derive(Debug)]
enum PortBetweenChannelAndNpu {
    /// The channel leads directly to the NPU.
    None,
    /// A network port without contention, and the channel's own bandwidth.
    Alone(MemoryNetworkAttachment, Bandwidth),
    /// A network port shared with messages.
    Shared(Box<channel_stream::PendingAccessesOfAllChannels>),
}

impl RemoteMemorySimulation {
    /// Creates the idle memory of a machine with `npus` NPUs. `memory` must be valid for the machine, and must not be
    /// memory at ports, which the network itself serves. `contended` is true if it is reached through the network and
    /// messages contend there.
    pub fn new(memory: &RemoteMemory, npus: u32, contended: bool) -> Self {
        let (one, through) = (memory.bandwidth, memory.through.as_ref());
        let latency =
            memory.latency + through.map_or(Span::ZERO, MemoryNetworkAttachment::link_latency);
        let shared = |mut layout: pool_layout::NpuPathsOverPoolServers| {
            if through.is_some() {
                layout.make_ports_full_duplex();
            }
            let through = through.filter(|_| contended);
            let chunks = through.map(|through| {
                chunked_access::ChunkedAccessesInFlight::new(through.port_bandwidth(), latency)
            });
            RemoteMemoryModelByAttachment::Shared(Box::new(
                fair_sharing::FairSharedPoolAccesses::new(layout, latency, chunks),
            ))
        };
        let state = match memory.attachment.pool_design() {
            Some(design) => shared(design.build_layout(one, npus)),
            None => {
                let sharers = memory.attachment.npus_per_channel(npus).unwrap_or(1);
                RemoteMemoryModelByAttachment::Channels(channels::MemoryChannelFreeTimes::new(
                    sharers,
                ))
            }
        };
        Self {
            latency: memory.latency,
            bandwidth: through.map_or(one, |through| {
                channel_stream::slower_of_channel_and_port_rate(one, through)
            }),
            whole_ns: memory.whole_ns,
            state,
            ports: match through {
                None => PortBetweenChannelAndNpu::None,
                Some(through) if contended => PortBetweenChannelAndNpu::Shared(Box::new(
                    channel_stream::PendingAccessesOfAllChannels::new(one, through, latency),
                )),
                Some(through) => PortBetweenChannelAndNpu::Alone(through.clone(), one),
            },
        }
    }

    /// Creates a memory in which `model` computes the ends of accesses.
    pub fn with_user_model(memory: &RemoteMemory, model: Box<dyn UserRemoteMemoryModel>) -> Self {
        Self {
            latency: memory.latency,
            bandwidth: memory.bandwidth,
            whole_ns: false,
            state: RemoteMemoryModelByAttachment::Own(model),
            ports: PortBetweenChannelAndNpu::None,
        }
    }

    /// Begins an access. Returns its end if already known, as with channels. Channels serve accesses in the order of
    /// these calls, and each access occupies a channel for latency + bytes / bandwidth. Returns `None` if the end
    /// depends on later accesses; [`Self::settle_rates`], [`Self::deliver_ends_of_finished_accesses`] and
    /// [`Self::serve_due_chunks`] then deliver it.
    pub fn begin_access(&mut self, now: Time, access: RemoteMemoryAccess) -> Option<Time> {
        let transfer = if self.whole_ns {
            let per_ns = self.bandwidth.bytes_per_second() / 1e9;
            // Truncate instead of rounding, because ASTRA-sim casts to whole nanoseconds.
            Span::from_ns((access.bytes as f64 / per_ns) as u64)
        } else {
            self.bandwidth
                .serialization_time(UnroundedBufferShare::from_bytes(access.bytes))
        };
        let span = self.latency + transfer;
        let free = match &mut self.state {
            RemoteMemoryModelByAttachment::Channels(channels) => {
                channels.reserve_channel(now, access.npu, span)
            }
            RemoteMemoryModelByAttachment::Shared(sharing) => {
                sharing.add_access_stream_without_rate(now, access);
                return None;
            }
            RemoteMemoryModelByAttachment::Own(model) => {
                model.begin_access_and_return_end(now, &access).max(now)
            }
        };
        match &mut self.ports {
            PortBetweenChannelAndNpu::None => Some(free),
            PortBetweenChannelAndNpu::Alone(through, channel) => {
                let [front, port] = channel_stream::chunk_seconds_in_channel_and_port(
                    *channel,
                    through,
                    access.bytes,
                );
                // The channel and the port form a pipeline of two stages. The total is the slower stage's time plus one
                // chunk's time in the faster.
                Some(free + through.link_latency() + Span::from_seconds_saturating(front.min(port)))
            }
            PortBetweenChannelAndNpu::Shared(lines) => {
                // The stream begins when the access acquires the channel, which is `span` before the channel is free
                // again.
                lines.start_stream_of_access(Time(free.0.saturating_sub(span.0)), access);
                None
            }
        }
    }

    /// Returns true if an access began or ended since the last call of [`Self::settle_rates`].
    #[inline]
    pub fn is_unsettled(&self) -> bool {
        match (&self.state, &self.ports) {
            (RemoteMemoryModelByAttachment::Shared(sharing), _) => sharing.is_unsettled(),
            (_, PortBetweenChannelAndNpu::Shared(lines)) => lines.is_unsettled(),
            _ => false,
        }
    }

    /// Divides the links' bandwidth among the accesses in flight. Must be called after all other events of `now`,
    /// including chunks. Returns the time of the next call of [`Self::deliver_ends_of_finished_accesses`], and the
    /// number that this call must pass to identify the division. Calls scheduled earlier then have no effect.
    pub fn settle_rates(&mut self, now: Time) -> Option<(Time, u32)> {
        match (&mut self.state, &mut self.ports) {
            (RemoteMemoryModelByAttachment::Shared(sharing), _) => {
                sharing.settle_rates_and_find_next_event(now)
            }
            (_, PortBetweenChannelAndNpu::Shared(lines)) => {
                lines.settle_streams_and_find_next_event()
            }
            _ => None,
        }
    }

    /// Passes the ends of finished accesses to `take`. Does nothing if the bandwidth was divided again after the event
    /// with number `settlement` was scheduled.
    pub fn deliver_ends_of_finished_accesses(
        &mut self,
        now: Time,
        settlement: u32,
        take: impl FnMut(MemoryAccessEnd),
    ) {
        match (&mut self.state, &mut self.ports) {
            (RemoteMemoryModelByAttachment::Shared(sharing), _) => {
                sharing.end_accesses(now, settlement, take)
            }
            (_, PortBetweenChannelAndNpu::Shared(lines)) => {
                lines.on_chunks_streamed(now, settlement)
            }
            _ => {}
        }
    }

    /// Returns true if more chunks are in flight to ports than memory allows; the replay then fails.
    pub fn has_too_many_chunks_in_flight(&self) -> bool {
        match (&self.state, &self.ports) {
            (RemoteMemoryModelByAttachment::Shared(sharing), _) => {
                sharing.has_too_many_chunks_in_flight()
            }
            (_, PortBetweenChannelAndNpu::Shared(lines)) => lines.has_too_many_chunks_in_flight(),
            _ => false,
        }
    }

    /// Serves chunks that are due `now` at ports shared with messages. `serve` returns the time at which the port
    /// begins to serve a chunk. `take` receives the ends of accesses. Must be called after all other events of the
    /// instant.
    pub fn serve_due_chunks(
        &mut self,
        now: Time,
        serve: impl FnMut(ChunkArrivalAtNpuPort) -> Time,
        take: impl FnMut(MemoryAccessEnd),
    ) {
        match (&mut self.state, &mut self.ports) {
            (RemoteMemoryModelByAttachment::Shared(sharing), _) => {
                sharing.serve_due_chunks(now, serve, take)
            }
            (_, PortBetweenChannelAndNpu::Shared(lines)) => {
                lines.serve_due_chunks(now, serve, take)
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryAttachment;
    use super::*;
    use chakram_base::ids::Npu;
    use chakram_base::units::Bytes;

    fn simulate_load_ends(attachment: MemoryAttachment) -> Vec<Time> {
        let memory = RemoteMemory {
            attachment,
            bandwidth: Bandwidth::new(25e9).unwrap(),
            latency: Span::from_ns(100),
            capacity: Some(Bytes(1 << 40)),
            whole_ns: false,
            through: None,
        };
        let mut remote = RemoteMemorySimulation::new(&memory, 4, false);
        (0..4)
            .map(|npu| {
                let access = RemoteMemoryAccess {
                    npu: Npu(npu),
                    bytes: 1 << 20,
                    store: false,
                    in_switch: false,
                    token: 0,
                };
                remote.begin_access(Time::ZERO, access).unwrap()
            })
            .collect()
    }

    #[test]
    fn a_pool_serves_one_after_another_and_channels_of_their_own_at_once() {
        // 1 MiB / 25 GB/s = 41.94304 us; with a latency of 0.1 us: 42.04304 us.
        let one = 42_043_040;
        assert_eq!(
            simulate_load_ends(MemoryAttachment::PerNpu),
            vec![Time(one); 4]
        );
        let expected: Vec<_> = (1..=4).map(|i| Time(one * i)).collect();
        assert_eq!(simulate_load_ends(MemoryAttachment::Pool), expected);
        // NPUs 0 and 1 share one channel, and NPUs 2 and 3 share another.
        let two = [one, 2 * one, one, 2 * one].map(Time);
        assert_eq!(simulate_load_ends(MemoryAttachment::PerNode(2)), two);
    }
}
