//! Places of ranks on a machine.

use super::ReplayRefusal;
use super::plan::NONE;
use chakram_base::ids::Npu;
use chakram_hardware::machine::Machine;

/// Returns the NPU of each of `ranks` ranks, from `map` or in their order.
///
/// # Errors
///
/// Fails if the machine has fewer NPUs, or the map is for other ranks, or names an NPU that does not exist, or one
/// twice.
pub fn place(
    ranks: u32,
    machine: &Machine,
    map: Option<&[Npu]>,
) -> Result<Vec<Npu>, ReplayRefusal> {
    let npus = machine.topology().npus();
    let Some(map) = map else {
        if ranks > npus {
            return Err(ReplayRefusal::new(
                format!(
                    "the job has {ranks} ranks, but machine `{}` has {npus} NPUs (0 to {})",
                    machine.name(),
                    npus - 1
                ),
                format!(
                    "take a machine with at least {ranks} NPUs; presets such as dgx-h100xN scale"
                ),
            ));
        }
        return Ok((0..ranks).map(Npu).collect());
    };
    if map.len() != ranks as usize {
        return Err(ReplayRefusal::new(
            format!(
                "the map places {} ranks, but the job has {ranks}",
                map.len()
            ),
            "give one NPU for each rank",
        ));
    }
    let mut taken = vec![NONE; npus as usize];
    for (rank, npu) in map.iter().enumerate() {
        match taken.get_mut(npu.index()) {
            None => {
                return Err(ReplayRefusal::new(
                    format!("the map puts rank {rank} on NPU {npu}, but there are {npus} NPUs"),
                    format!("NPUs are numbered 0 to {}", npus - 1),
                ));
            }
            Some(other) if *other != NONE => {
                return Err(ReplayRefusal::new(
                    format!("the map puts ranks {other} and {rank} on NPU {npu}"),
                    "give each rank an NPU of its own",
                ));
            }
            Some(free) => *free = rank as u32,
        }
    }
    Ok(map.to_vec())
}
