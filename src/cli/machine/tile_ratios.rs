//! Computes the ratios by which PALM's Table I compares machines of tiles.

use chakram_hardware::machine::Machine;
use chakram_hardware::memory::MemoryAttachment;
use chakram_trace::format::Dtype;
use serde::Serialize;

/// Values of Table I: SRAM in MB per TFLOP/s of fp16, maximum hops to DRAM, and the ratio of link
/// bandwidth to DRAM bandwidth.
const PUBLISHED: [(&str, [f64; 3]); 3] = [
    ("grayskull", [1.304, 5.0, 1.9]),
    ("dojo-tile", [1.215, 25.0, 2.275]),
    ("wse-2", [2.666, 316.0, 1.375]),
];

/// Ratios of a machine of tiles whose memory is at its edges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct TileMachineHardwareRatios {
    /// SRAM in MB per TFLOP/s of fp16.
    sram_mb_per_tflop_per_s: f64,
    /// Maximum number of links between a core and the nearest memory port.
    hops_to_dram: u32,
    /// Bandwidth of a link on a die, divided by one port's bandwidth.
    link_to_dram_port: f64,
    /// Bandwidth of a link on a die, divided by the total bandwidth of all ports.
    link_to_dram: f64,
}

impl TileMachineHardwareRatios {
    /// Computes the ratios of `machine`. Returns `None` if the machine has no tiles, no edge DRAM or no
    /// fp16 peak.
    pub(super) fn of_machine(machine: &Machine) -> Option<Self> {
        let topology = machine.topology();
        topology.tile_grid()?;
        let memory = machine.unnamed_remote_memory()?;
        let MemoryAttachment::Ports(ports) = &memory.attachment else {
            return None;
        };
        let class = &machine.npu_classes()[0];
        let peak = class
            .peaks
            .peak_rate_if_supported(Dtype::Fp16)?
            .per_second();
        let port =
            topology.link_bandwidth(0).bytes_per_second() / memory.bandwidth.bytes_per_second();
        Some(Self {
            sram_mb_per_tflop_per_s: class.memory?.capacity?.0 as f64 / 1e6 / (peak / 1e12),
            hops_to_dram: ports.max_hops_to_nearest_port(topology),
            link_to_dram_port: port,
            link_to_dram: port / f64::from(ports.port_count()),
        })
    }

    /// Formats the ratios as comments of a machine file. If PALM publishes ratios for `name`, the
    /// comments include them.
    pub(super) fn format_comment(&self, name: &str) -> String {
        let published = PUBLISHED.iter().find(|(known, _)| *known == name);
        let beside = |index: usize| {
            let value = published.map(|(_, values)| values[index]);
            value.map_or(String::new(), |value| format!(" (published: {value})"))
        };
        let [sram, port, all] = [
            self.sram_mb_per_tflop_per_s,
            self.link_to_dram_port,
            self.link_to_dram,
        ];
        format!(
            "# Ratios as in Table I of PALM, computed from the numbers above:\n\
             # SRAM per compute: {sram:.3} MB per TFLOP/s{}\n\
             # Hops to DRAM: at most {}{}\n\
             # Link bandwidth over DRAM bandwidth: {all:.3} of all ports, {port:.3} of one{}\n",
            beside(0),
            self.hops_to_dram,
            beside(1),
            beside(2),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With PALM's Table VI, the SRAM ratio is 3.75 MB / 16 TFLOP/s = 0.234. A link has 1024 / 256 = 4 times the
    /// bandwidth of one memory port, and there are 80 ports. On a die of 4 x 4 cores with ports at rows 1 and 2 of both
    /// sides, cores such as (1, 0) are 2 links away from a port.
    #[test]
    fn the_wafer_has_the_ratios_of_its_table() {
        let ratios =
            TileMachineHardwareRatios::of_machine(&Machine::load_preset("wafer-5x4").unwrap())
                .unwrap();
        assert_eq!(ratios.sram_mb_per_tflop_per_s, 3.75 / 16.0);
        assert_eq!(ratios.hops_to_dram, 2);
        assert_eq!(ratios.link_to_dram_port, 4.0);
        assert_eq!(ratios.link_to_dram, 4.0 / 80.0);
    }

    /// The SRAM ratios in PALM's Table I are 120 MB / 92 TFLOP/s = 1.304 and 192 / 101 = 1.9. For 850,000 cores with 48
    /// kB each, 40.8 GB in all, the ratio is 40.8 GB / 15 PFLOP/s = 2.727; the table uses 40 GB.
    #[test]
    fn known_chips_show_published_ratios_beside_computed_ones() {
        let of = |name: &str| {
            TileMachineHardwareRatios::of_machine(&Machine::load_preset(name).unwrap()).unwrap()
        };
        assert!((of("grayskull").sram_mb_per_tflop_per_s - 1.304).abs() < 0.001);
        assert!((of("grayskull").link_to_dram - 1.9).abs() < 0.001);
        assert!((of("dojo-tile").sram_mb_per_tflop_per_s - 1.22).abs() < 0.006);
        assert!((of("wse-2").sram_mb_per_tflop_per_s - 2.727).abs() < 0.001);
        let text = of("grayskull").format_comment("grayskull");
        assert!(
            text.contains("1.304 MB per TFLOP/s (published: 1.304)"),
            "{text}"
        );
        assert!(!of("grayskull").format_comment("mine").contains("published"));
    }
}
