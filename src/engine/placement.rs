//! Places ranks on the NPUs of a machine.

use super::ReplayRefusal;
use super::plan::NONE;
use chakram_base::ids::Npu;
use chakram_base::setting::SettingKey;
use chakram_hardware::machine::Machine;

/// Returns the NPU of each of `ranks` ranks: from `map` if given, otherwise from the machine's default placement.
///
/// # Errors
///
/// Fails if the machine has too few NPUs. Also fails if the map's length is not `ranks`, or if the map names a missing
/// NPU or names an NPU twice.
pub fn place_ranks(
    ranks: u32,
    machine: &Machine,
    map: Option<&[Npu]>,
) -> Result<Vec<Npu>, ReplayRefusal> {
    let npus = machine.topology().npu_count();
    let Some(map) = map else {
        let most = machine.max_ranks_without_placement_map();
        if (most + 1..=npus).contains(&ranks)
            && let Some(domain) = machine.dimension_with_npu_limit()
        {
            let dimension = &machine.topology().dimensions()[domain.dimension].name;
            let (used, of) = (domain.used, domain.npus);
            return Err(ReplayRefusal::new(
                format!(
                    "the job has {ranks} ranks, but machine `{}` takes at most {most}: jobs of \
                     more than {of} ranks use {used} of the {of} NPUs of each `{dimension}` (key \
                     `ranks`)",
                    machine.name()
                ),
                format!(
                    "take a machine of {} such domains, or use all NPUs of each with {}",
                    domain.domain_count(ranks),
                    SettingKey::FillDomains
                ),
            ));
        }
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
        return Ok((0..ranks)
            .map(|rank| machine.npu_of_rank(rank, ranks))
            .collect());
    };
    if map.len() != ranks as usize {
        return Err(ReplayRefusal::new(
            format!(
                "the map places {} ranks, but the job has {ranks}",
                map.len()
            ),
            "give exactly one NPU for each rank",
        ));
    }
    let mut taken = vec![NONE; npus as usize];
    for (rank, npu) in map.iter().enumerate() {
        match taken.get_mut(npu.index()) {
            None => {
                return Err(ReplayRefusal::new(
                    format!(
                        "the map places rank {rank} on NPU {npu}, but the machine has {npus} NPUs"
                    ),
                    format!("NPUs from 0 to {}", npus - 1),
                ));
            }
            Some(other) if *other != NONE => {
                return Err(ReplayRefusal::new(
                    format!("the map places ranks {other} and {rank} on NPU {npu}"),
                    "give each rank a different NPU",
                ));
            }
            Some(free) => *free = rank as u32,
        }
    }
    Ok(map.to_vec())
}
