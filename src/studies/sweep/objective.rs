//! Objectives of a sweep, and the measures of a point that determine them.

use super::setting::{PRICE, Settings};
use chakram_base::config::ConfigLiteral;
use chakram_report::cost::format_dollars;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Results of a point's replay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointMeasures {
    /// Makespan, in picoseconds.
    pub time_ps: u64,
    /// Number of NPUs that the job uses.
    pub npus: u32,
    /// Time in each part, averaged over NPUs, in the order of [`PARTS`]. In files from older versions, exposed
    /// communication includes the bubble.
    #[serde(default, deserialize_with = "deserialize_time_parts_or_zeros")]
    pub parts_ps: [u64; PARTS.len()],
    /// Most bytes in use at once on an NPU, if the traces state allocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Energy of kernels timed by loop nests, summed over NPUs, in picojoules; `None` without such kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_energy_pj: Option<f64>,
    /// Compute time of kernels that are not timed by loop nests, averaged over NPUs; `None` if no kernel is timed by
    /// loop nests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmapped_ps: Option<u64>,
    /// Price of an NPU in dollars per hour, if the machine file states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars_per_npu_hour: Option<f64>,
    /// Number of the job's tokens, or of its samples if it has no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Mean busy time of a link between cores, if the machine consists of tiles with shared links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links_busy_ps: Option<u64>,
    /// Mean busy time of a memory port, if the machine consists of tiles with shared links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports_busy_ps: Option<u64>,
}

/// A quantity that a sweep minimises or maximises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepObjective {
    /// Makespan of the replay.
    Time,
    /// Tokens per second.
    Tokens,
    /// Tokens per second and NPU.
    TokensPerNpu,
    /// Most bytes in use at once on an NPU.
    Memory,
    /// Energy of all NPUs. Kernels timed by loop nests use the energy of their mappings. An NPU uses `power.busy` watts
    /// while other kernels run, and `power.idle` watts while no kernel runs.
    Energy,
    /// Energy multiplied by the makespan.
    EnergyDelay,
    /// Price of the job's NPUs during the makespan, at `price.npu` per hour or the machine's own
    /// price.
    Cost,
    /// Price per million tokens.
    TokenCost,
    /// Duration of a run of `total_tokens`, in days.
    RunDays,
    /// NPU hours to process `total_tokens`.
    RunNpuHours,
    /// Price of processing `total_tokens`.
    RunCost,
    /// Energy to process `total_tokens`.
    RunEnergy,
    /// Number of NPUs that the job uses.
    Npus,
}

impl SweepObjective {
    /// Every objective.
    pub const ALL: [Self; 13] = [
        Self::Time,
        Self::Tokens,
        Self::TokensPerNpu,
        Self::Memory,
        Self::Energy,
        Self::EnergyDelay,
        Self::Cost,
        Self::TokenCost,
        Self::RunDays,
        Self::RunNpuHours,
        Self::RunCost,
        Self::RunEnergy,
        Self::Npus,
    ];

    /// Objectives that rows show besides the study's, if their values are known.
    pub const STATED: [Self; 6] = [
        Self::Tokens,
        Self::TokenCost,
        Self::RunDays,
        Self::RunNpuHours,
        Self::RunCost,
        Self::RunEnergy,
    ];

    /// Returns the objective's name in study files, which is also the heading of its column.
    pub fn column_name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Tokens => "tokens_per_s",
            Self::TokensPerNpu => "tokens_per_s_per_npu",
            Self::Memory => "memory",
            Self::Energy => "energy",
            Self::EnergyDelay => "energy_delay",
            Self::Cost => "cost",
            Self::TokenCost => "dollars_per_million_tokens",
            Self::RunDays => "run_days",
            Self::RunNpuHours => "run_npu_hours",
            Self::RunCost => "run_dollars",
            Self::RunEnergy => "run_energy",
            Self::Npus => "npus",
        }
    }

    /// Returns true if the objective depends on the energy of NPUs.
    pub fn depends_on_energy(self) -> bool {
        matches!(self, Self::Energy | Self::EnergyDelay | Self::RunEnergy)
    }

    /// Returns the settings that the objective needs. `all_mapped` is true if all kernels are timed by loop nests.
    pub fn required_settings(self, all_mapped: bool) -> &'static [&'static str] {
        match self {
            Self::Energy | Self::EnergyDelay if all_mapped => &["power.idle"],
            Self::Energy | Self::EnergyDelay => &["power.busy", "power.idle"],
            Self::Cost | Self::TokenCost => &[PRICE],
            Self::RunDays | Self::RunNpuHours => &["total_tokens"],
            Self::RunCost => &[PRICE, "total_tokens"],
            Self::RunEnergy if all_mapped => &["power.idle", "total_tokens"],
            Self::RunEnergy => &["power.busy", "power.idle", "total_tokens"],
            _ => &[],
        }
    }

    /// Returns true if a lower bound on the time also bounds this objective. The objective's bound is an upper one if
    /// larger values are better.
    pub fn is_bounded_by_time(self) -> bool {
        matches!(
            self,
            Self::Time
                | Self::Tokens
                | Self::TokensPerNpu
                | Self::Cost
                | Self::TokenCost
                | Self::RunDays
                | Self::RunNpuHours
                | Self::RunCost
        )
    }

    /// Returns true if a larger value is better.
    pub fn is_maximised(self) -> bool {
        matches!(self, Self::Tokens | Self::TokensPerNpu)
    }

    /// Returns the value; `None` if unknown. Units are seconds, tokens per second, bytes, joules, joule-seconds,
    /// dollars, days, hours or NPUs.
    pub fn value_of_point(self, measures: &PointMeasures, settings: &Settings) -> Option<f64> {
        let seconds = measures.time_ps as f64 / 1e12;
        let npus = f64::from(measures.npus);
        let number = |key: &str| settings.get(key).and_then(ConfigLiteral::as_number);
        Some(match self {
            Self::Time => seconds,
            Self::Tokens => measures.tokens? as f64 / seconds,
            Self::TokensPerNpu => measures.tokens? as f64 / seconds / npus,
            Self::Memory => measures.memory_bytes? as f64,
            Self::Energy => {
                let mapped = measures.kernel_energy_pj.unwrap_or(0.0) * 1e-12;
                let busy = measures.parts_ps[0] as f64 / 1e12;
                let others = measures.unmapped_ps.unwrap_or(measures.parts_ps[0]);
                let others = match others as f64 / 1e12 {
                    0.0 => 0.0,
                    others => number("power.busy")? * others,
                };
                mapped + npus * (others + number("power.idle")? * (seconds - busy))
            }
            Self::EnergyDelay => Self::Energy.value_of_point(measures, settings)? * seconds,
            Self::Cost => {
                let price = number(PRICE).or(measures.dollars_per_npu_hour)?;
                price * npus * seconds / 3600.0
            }
            Self::TokenCost => {
                Self::Cost.value_of_point(measures, settings)? / measures.tokens? as f64 * 1e6
            }
            // A run takes as many replays as its tokens divided by one replay's tokens.
            Self::RunDays => number("total_tokens")? / measures.tokens? as f64 * seconds / 86_400.0,
            Self::RunNpuHours => Self::RunDays.value_of_point(measures, settings)? * 24.0 * npus,
            Self::RunCost => {
                let replays = number("total_tokens")? / measures.tokens? as f64;
                Self::Cost.value_of_point(measures, settings)? * replays
            }
            Self::RunEnergy => {
                let replays = number("total_tokens")? / measures.tokens? as f64;
                Self::Energy.value_of_point(measures, settings)? * replays
            }
            Self::Npus => npus,
        })
    }

    /// Returns the value, negated if larger values are better, so that smaller results are always better.
    pub fn score_to_minimise(self, measures: &PointMeasures, settings: &Settings) -> Option<f64> {
        let value = self.value_of_point(measures, settings)?;
        Some(if self.is_maximised() { -value } else { value })
    }

    /// Formats the value with its unit.
    pub fn format_value(self, value: f64) -> String {
        match self {
            Self::Time => chakram_base::units::Span::from_seconds_saturating(value).to_string(),
            Self::Tokens | Self::TokensPerNpu if value >= 1000.0 => {
                chakram_base::units::format_thousands(value.round() as u64)
            }
            Self::Tokens | Self::TokensPerNpu => format!("{value:.2}"),
            Self::Memory => chakram_base::units::Bytes(value as u64).to_string(),
            Self::Energy | Self::RunEnergy => chakram_base::units::format_joules(value),
            Self::EnergyDelay => format!("{value:.4e} J s"),
            Self::Cost | Self::TokenCost | Self::RunCost => format_dollars(value),
            Self::RunDays | Self::RunNpuHours if value >= 100.0 => {
                chakram_base::units::format_thousands(value.round() as u64)
            }
            Self::RunDays | Self::RunNpuHours => format!("{value:.2}"),
            Self::Npus => format!("{value}"),
        }
    }
}

/// Names of the parts of an NPU's time, in the order of [`PointMeasures::parts_ps`].
pub const PARTS: [&str; 6] = [
    "compute",
    "exposed communication",
    "memory",
    "host",
    "idle",
    "pipeline bubble",
];

/// Deserializes the parts of the time. Parts that an older file lacks are zero.
fn deserialize_time_parts_or_zeros<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<[u64; PARTS.len()], D::Error> {
    let found = Vec::<u64>::deserialize(from)?;
    let mut parts = [0; PARTS.len()];
    if found.len() > parts.len() {
        return Err(D::Error::invalid_length(found.len(), &"6 parts at most"));
    }
    parts[..found.len()].copy_from_slice(&found);
    Ok(parts)
}

impl PointMeasures {
    /// Returns a busy time divided by the makespan.
    pub fn share_of_makespan(&self, busy_ps: Option<u64>) -> Option<f64> {
        busy_ps.map(|busy| busy as f64 / self.time_ps.max(1) as f64)
    }

    /// Returns the largest part of the NPUs' time, and what fraction of the makespan it is.
    pub fn describe_largest_part(&self) -> String {
        let most = (0..PARTS.len())
            .rev()
            .max_by_key(|part| self.parts_ps[*part])
            .unwrap_or(0);
        let share = 100.0 * self.parts_ps[most] as f64 / self.time_ps.max(1) as f64;
        format!("{} {share:.0} %", PARTS[most])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_parts_of_files_without_bubble_part_are_read() {
        let read = |parts: &str| {
            let text = format!(r#"{{"time_ps": 9, "npus": 1, "parts_ps": {parts}}}"#);
            serde_json::from_str::<PointMeasures>(&text).map(|measures| measures.parts_ps)
        };
        assert_eq!(read("[1,2,3,4,5]").unwrap(), [1, 2, 3, 4, 5, 0]);
        assert_eq!(read("[1,2,3,4,5,6]").unwrap(), [1, 2, 3, 4, 5, 6]);
        assert!(read("[1,2,3,4,5,6,7]").is_err());
    }

    #[test]
    fn objectives_follow_from_measures_and_prices() {
        // 4 NPUs that are busy for 1.5 s of 2 s, at 700 W while busy and 100 W while idle, use 4 x (700 x 1.5 + 100 x
        // 0.5) = 4400 J. At 3.6 dollars per hour, the 4 NPUs cost 3.6 x 4 x 2 / 3600 = 0.008 dollars.
        let measures = PointMeasures {
            time_ps: 2_000_000_000_000,
            npus: 4,
            parts_ps: [1_500_000_000_000, 300_000_000_000, 0, 0, 200_000_000_000, 0],
            memory_bytes: Some(5),
            tokens: Some(8192),
            ..PointMeasures::default()
        };
        let mut settings = Settings::new();
        for (key, value) in [
            ("power.busy", 700.0),
            ("power.idle", 100.0),
            ("price.npu", 3.6),
        ] {
            settings.insert(key.to_owned(), ConfigLiteral::Number(value));
        }
        let value =
            |objective: SweepObjective| objective.value_of_point(&measures, &settings).unwrap();
        assert_eq!(value(SweepObjective::Time), 2.0);
        assert_eq!(value(SweepObjective::Tokens), 4096.0);
        assert_eq!(value(SweepObjective::TokensPerNpu), 1024.0);
        assert_eq!(value(SweepObjective::Memory), 5.0);
        assert_eq!(value(SweepObjective::Energy), 4400.0);
        assert!((value(SweepObjective::Cost) - 0.008).abs() < 1e-15);
        // If 8,192 tokens cost 0.008 dollars, a million tokens cost 0.97656 dollars. A run of 8.192e9 tokens takes a
        // million replays. These take 2e6 s on 4 NPUs, cost 8,000 dollars, and use 4.4 GJ.
        settings.insert("total_tokens".to_owned(), ConfigLiteral::Number(8.192e9));
        let value =
            |objective: SweepObjective| objective.value_of_point(&measures, &settings).unwrap();
        for (objective, expected) in [
            (SweepObjective::TokenCost, 0.976_562_5),
            (SweepObjective::RunDays, 2e6 / 86_400.0),
            (SweepObjective::RunNpuHours, 8e6 / 3600.0),
            (SweepObjective::RunCost, 8000.0),
            (SweepObjective::RunEnergy, 4.4e9),
        ] {
            let found = value(objective);
            assert!(
                (found / expected - 1.0).abs() < 1e-12,
                "{}: {found}",
                objective.column_name()
            );
        }
        // If the study sets no price, the machine's price applies. If the machine has no price either, the point has no
        // cost.
        let mut own = settings.clone();
        own.remove("price.npu");
        assert_eq!(SweepObjective::Cost.value_of_point(&measures, &own), None);
        let priced = PointMeasures {
            dollars_per_npu_hour: Some(7.2),
            ..measures.clone()
        };
        let cost = SweepObjective::Cost.value_of_point(&priced, &own).unwrap();
        assert!((cost - 0.016).abs() < 1e-15);
        assert_eq!(
            SweepObjective::Tokens.score_to_minimise(&measures, &settings),
            Some(-4096.0)
        );
        assert_eq!(value(SweepObjective::EnergyDelay), 8800.0);
        assert_eq!(
            SweepObjective::Energy.value_of_point(&measures, &Settings::new()),
            None
        );
        // The kernels timed by loop nests use 9e14 pJ = 900 J. Other kernels take only 0.5 s of the 1.5 s of computing.
        // The total is therefore 900 + 4 x (700 x 0.5 + 100 x 0.5) J.
        let mapped = PointMeasures {
            kernel_energy_pj: Some(9e14),
            unmapped_ps: Some(500_000_000_000),
            ..measures.clone()
        };
        let energy = |measures| SweepObjective::Energy.value_of_point(measures, &settings);
        assert_eq!(energy(&mapped), Some(2500.0));
        // If all kernels are timed by loop nests, `power.busy` has no effect, and the total is 900 + 4 x 100 x 0.5 J.
        let all = PointMeasures {
            unmapped_ps: Some(0),
            ..mapped
        };
        let mut idle = settings.clone();
        idle.remove("power.busy");
        assert_eq!(
            SweepObjective::Energy.value_of_point(&all, &idle),
            Some(1100.0)
        );
        assert_eq!(measures.describe_largest_part(), "compute 75 %");
    }
}
