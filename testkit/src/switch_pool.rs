//! Computes the times of loads through two levels of switches, in floating-point numbers. The
//! oracle finds each stream's share by bisection, level by level. Chakram instead saturates one
//! server after another.

/// A pool of memory groups behind the switches of nodes. Rates are in GB/s.
#[derive(Clone, Copy, Debug)]
pub struct SwitchMemoryPool {
    pub groups: u32,
    pub group: u32,
    pub npus_per_node: u32,
    pub node: u32,
    pub port: u32,
    pub npus: u32,
    /// Size in bytes of a chunk that a group sends over all its links together.
    pub links_chunk: u64,
}

/// A load: its NPU, its start in ps, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLoad {
    pub npu: u32,
    pub at: f64,
    pub bytes: f64,
}

/// Returns the max-min share of each stream at a server with `capacity`. A stream whose limit in `limits` is below its
/// share gets only that limit. If the server is not saturated, returns `capacity`.
fn max_min_share(limits: &[f64], capacity: f64) -> f64 {
    let (mut low, mut high) = (0.0, capacity);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        match limits.iter().map(|limit| limit.min(middle)).sum::<f64>() > capacity {
            true => high = middle,
            false => low = middle,
        }
    }
    high
}

/// Converts GB/s to bytes per ps.
fn bytes_per_ps(gb: u32) -> f64 {
    f64::from(gb) / 1000.0
}

/// Returns the rate of each NPU that is loading.
fn rates_of_loading_npus(tree: &SwitchMemoryPool, npus: &[u32]) -> Vec<f64> {
    let with = |like: &dyn Fn(u32) -> bool| npus.iter().filter(|npu| like(**npu)).count() as f64;
    let node = |npu: u32| npu / tree.npus_per_node;
    let port = |npu: u32| bytes_per_ps(tree.port) / with(&|other| other == npu);
    let own = |npu: u32| {
        let inside = npus.iter().filter(|other| node(**other) == node(npu));
        let limits: Vec<f64> = inside.map(|other| port(*other)).collect();
        port(npu).min(max_min_share(&limits, bytes_per_ps(tree.node)))
    };
    let limits: Vec<f64> = npus.iter().map(|npu| own(*npu)).collect();
    let all = max_min_share(&limits, bytes_per_ps(tree.group) * f64::from(tree.groups));
    limits.iter().map(|limit| limit.min(all)).collect()
}

/// Returns a chunk's time in all stages except the longest, for a load that begins while these NPUs
/// load.
fn chunk_time_outside_bottleneck(tree: &SwitchMemoryPool, load: &MemoryLoad, npus: &[u32]) -> f64 {
    let round = tree.links_chunk as f64 * f64::from(tree.groups);
    let piece = load.bytes.min(round / f64::from(tree.npus));
    let node = |npu: u32| npu / tree.npus_per_node;
    let inside = npus.iter().filter(|npu| node(**npu) == node(load.npu));
    let own = npus.iter().filter(|npu| **npu == load.npu);
    let times = [
        piece * npus.len() as f64 / (bytes_per_ps(tree.group) * f64::from(tree.groups)),
        piece * inside.count() as f64 / bytes_per_ps(tree.node),
        piece * own.count() as f64 / bytes_per_ps(tree.port),
    ];
    times.iter().sum::<f64>() - times.iter().copied().fold(0.0, f64::max)
}

/// Returns the end of each load in ps, without latencies.
pub fn load_end_times(tree: &SwitchMemoryPool, loads: &[MemoryLoad]) -> Vec<f64> {
    /// Smaller amounts (bytes) are rounding errors.
    const NOTHING: f64 = 1e-6;
    let mut left: Vec<f64> = loads.iter().map(|load| load.bytes).collect();
    let mut fills = vec![None; loads.len()];
    let mut ends = vec![f64::NAN; loads.len()];
    let mut now = 0.0;
    loop {
        let busy: Vec<usize> = (0..loads.len())
            .filter(|&i| loads[i].at <= now && left[i] > NOTHING)
            .collect();
        let npus: Vec<u32> = busy.iter().map(|&i| loads[i].npu).collect();
        for &i in &busy {
            fills[i].get_or_insert_with(|| chunk_time_outside_bottleneck(tree, &loads[i], &npus));
        }
        let rates = rates_of_loading_npus(tree, &npus);
        let over = busy
            .iter()
            .zip(&rates)
            .map(|(&i, rate)| now + left[i] / rate);
        let begin = loads.iter().map(|load| load.at).filter(|at| *at > now);
        let Some(next) = over.chain(begin).min_by(f64::total_cmp) else {
            return ends;
        };
        for (&i, rate) in busy.iter().zip(&rates) {
            left[i] -= rate * (next - now);
            if left[i] <= NOTHING {
                ends[i] = next + fills[i].expect("it began");
            }
        }
        now = next;
    }
}
