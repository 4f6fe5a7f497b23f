//! The machine files that are compiled into the program.

/// A machine whose file is compiled into the program.
#[derive(Clone, Copy, Debug)]
pub struct MachinePreset {
    /// Name by which users select the preset.
    pub name: &'static str,
    /// Text of the machine file. Comments in the file state the source of every number.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Every preset: products first, then machines of tiles, then the machines of the ASTRA-sim 2.0 paper.
        pub const PRESETS: &[MachinePreset] = &[$(MachinePreset {
            name: $name,
            text: include_str!(concat!("presets/", $name, ".toml")),
        }),*];
    };
}

presets!(
    "dgx-a100",
    "dgx-h100",
    "dgx-h200",
    "dgx-b200",
    "grand-teton-h100",
    "selene",
    "gb200-nvl72",
    "h100-pcie",
    "dgx-h800",
    "b300",
    "gb300",
    "dgx-v100",
    "mi300x",
    "tpu-v4",
    "tpu-v5p",
    "tpu-v6e",
    "tpu7x",
    "trn1",
    "wafer-5x4",
    "wafer-5x4-published",
    "palm-gpu",
    "gemmini",
    "grayskull",
    "dojo-tile",
    "wse-2",
    "w-1d-350",
    "w-1d-500",
    "w-1d-600",
    "w-2d",
    "conv-3d",
    "conv-4d",
    "zero-infinity",
    "hiermem",
    "hiermem-opt",
);
