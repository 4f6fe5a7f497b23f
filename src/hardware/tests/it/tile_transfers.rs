//! Compares random transfers, loads and stores over grids of dies with a simple simulator whose links queue waiting
//! transfers.

use chakram_base::ids::{EndpointId, Npu, OpIndex};
use chakram_base::units::{Bandwidth, Span, Time, UnroundedBufferShare};
use chakram_hardware::network::{
    EventScheduler, MemoryLoadStoreTransfer, NetworkBackend, NetworkEvent, NetworkMessage,
    OneTransferPerLinkNetwork,
};
use chakram_hardware::topology::tile_grid::DieBorderLinks;
use chakram_hardware::topology::{
    DieAndCoreLayout, DimensionShape, MemoryAtNpuOrFabric, MemorySiteAndLink, SwitchingMode,
    Topology,
};
use testkit::tile_transfers::{
    CoreTransfer, GridOfDiesAndCores, LinkByteTimeAndLatency, MemoryPort, transfer_end_times,
};

/// Time of the last scheduled event.
#[derive(Default)]
struct LastEventTime(u64);

impl EventScheduler for LastEventTime {
    fn schedule_event(&mut self, at: Time, event: NetworkEvent) {
        if matches!(event, NetworkEvent::Delivered(_)) {
            self.0 = at.0;
        }
    }
}

/// Random numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

fn rate_from_byte_time(ps_per_byte: u64) -> Bandwidth {
    Bandwidth::new(1e12 / ps_per_byte as f64).unwrap()
}

fn build_tile_topology(grid: &GridOfDiesAndCores) -> Topology {
    let tiles = DieAndCoreLayout {
        dies: grid.dies,
        cores: grid.cores,
        borders: DieBorderLinks {
            bandwidth: rate_from_byte_time(grid.border.ps_per_byte),
            latency: Span(grid.border.latency_ps),
        },
        half_duplex: grid.half_duplex,
        barrier: None,
        faulty_cores: Default::default(),
        faulty_links: Default::default(),
    };
    let shape = if grid.torus {
        DimensionShape::Ring
    } else {
        DimensionShape::Mesh
    };
    let inside = rate_from_byte_time(grid.inside.ps_per_byte);
    let topology =
        Topology::from_tile_grid(tiles, shape, inside, Span(grid.inside.latency_ps)).unwrap();
    if grid.store_and_forward {
        topology.with_switching(SwitchingMode::StoreAndForward)
    } else {
        topology
    }
}

/// Compares `count` random transfers over `grid`. A third of the transfers are loads and stores at four memory ports.
/// Transfers begin at such short intervals that they queue.
fn check_random_transfers(grid: &GridOfDiesAndCores, count: usize, seed: u64) {
    let random = &mut Random(seed | 1);
    let topology = build_tile_topology(grid);
    let tiles = topology.tile_grid().unwrap().clone();
    let cores = u64::from(topology.npu_count());
    let behind_cores = topology.npu_count();
    let memory = LinkByteTimeAndLatency {
        ps_per_byte: 4,
        latency_ps: 700,
    };
    let ports: Vec<u32> = (0..4).map(|_| random.below(cores) as u32).collect();
    let endpoint = |&at: &u32| MemorySiteAndLink {
        site: MemoryAtNpuOrFabric::Npu(Npu(at)),
        bandwidth: rate_from_byte_time(memory.ps_per_byte),
        latency: Span(memory.latency_ps),
    };
    let topology = topology.with_memories(ports.iter().map(endpoint).collect());
    let mut network = OneTransferPerLinkNetwork::new(&topology);
    let (mut transfers, mut found) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut now = 0;
    for op in 0..count {
        now += random.below(1500);
        let bytes = 1 + random.below(2000);
        let number = random.below(12) as u32;
        let mut scheduler = LastEventTime::default();
        let (from, to, port) = match ports.get(number as usize) {
            Some(_) => {
                let core = random.below(cores) as u32;
                let core = EndpointId(core);
                let port = EndpointId(behind_cores + number);
                let ends = if random.below(2) == 0 {
                    (core, port)
                } else {
                    (port, core)
                };
                let transfer = MemoryLoadStoreTransfer {
                    op: OpIndex(op as u32),
                    ends,
                    path: topology.path_between(ends).unwrap(),
                    amount: UnroundedBufferShare::from_bytes(bytes),
                };
                let end = network.serve_access(Time(now), &transfer, &mut scheduler);
                scheduler.0 = end.unwrap().0;
                let (from, to) = topology.npus_of_endpoints(ends);
                (
                    from.0,
                    to.0,
                    Some(MemoryPort {
                        number,
                        time: memory,
                    }),
                )
            }
            None => {
                let from = random.below(cores) as u32;
                let to = (u64::from(from) + 1 + random.below(cores - 1)) % cores;
                let ends = (Npu(from), Npu(to as u32));
                let message = NetworkMessage::create_message_without_port(
                    OpIndex(op as u32),
                    ends,
                    UnroundedBufferShare::from_bytes(bytes),
                );
                network.submit_message(Time(now), &message, &mut scheduler);
                (from, to as u32, None)
            }
        };
        found.push(scheduler.0);
        transfers.push(CoreTransfer {
            at: now,
            from: tiles.coordinates_of_core(from),
            to: tiles.coordinates_of_core(to),
            bytes,
            port,
        });
    }
    let expected = transfer_end_times(grid, &transfers);
    let wrong = (0..count).find(|&op| found[op] != expected[op]);
    let wrong = wrong.map(|op| (transfers[op], found[op], expected[op]));
    assert!(wrong.is_none(), "{grid:?}: {wrong:?}");
}

/// Returns meshes and tori with one die and with several dies, half and full duplex, in both forwarding modes.
fn list_tile_grids() -> impl Iterator<Item = GridOfDiesAndCores> {
    let sizes = [
        ([1, 1], [8, 8]),
        ([1, 1], [5, 3]),
        ([2, 2], [4, 4]),
        ([3, 2], [2, 3]),
        ([5, 4], [4, 4]),
        ([4, 1], [1, 2]),
    ];
    let settings = (0..8).map(|i| [i & 1 > 0, i & 2 > 0, i & 4 > 0]);
    sizes.into_iter().flat_map(move |(dies, cores)| {
        settings.clone().map(
            move |[torus, half_duplex, store_and_forward]| GridOfDiesAndCores {
                dies,
                cores,
                torus,
                half_duplex,
                store_and_forward,
                inside: LinkByteTimeAndLatency {
                    ps_per_byte: 1,
                    latency_ps: 10,
                },
                border: LinkByteTimeAndLatency {
                    ps_per_byte: 3,
                    latency_ps: 25,
                },
            },
        )
    })
}

/// Compares 4,800 transfers.
#[test]
fn transfers_end_as_with_queues_of_tickets() {
    for (seed, grid) in (1..).zip(list_tile_grids()) {
        check_random_transfers(&grid, 100, seed);
    }
}

/// Compares 120,000 transfers; run with
/// `cargo test -p chakram-hardware --release -- --ignored tile_transfers`.
#[test]
#[ignore = "long: 120,000 transfers"]
fn random_transfers_end_as_in_the_ticket_queue_reference() {
    for (seed, grid) in (1..).zip(list_tile_grids()) {
        check_random_transfers(&grid, 2500, seed * 77);
    }
}
