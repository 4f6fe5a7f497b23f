//! Platforms that come with the program.

/// A platform that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct PlatformPreset {
    /// Name for `--machine`.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Every platform: those of the thesis, those of its successor, and what else is printed.
        pub const PRESETS: &[PlatformPreset] = &[$(PlatformPreset {
            name: $name,
            text: include_str!(concat!("platforms/", $name, ".toml")),
        }),*];
    };
}

presets!(
    "a100x",
    "brainwave",
    "a100",
    "p4",
    "lightning",
    "a100x-sigcomm23",
    "brainwave-sigcomm23",
    "a100-sigcomm23",
    "p4-sigcomm23",
    "lightning-sigcomm23",
    "tpu-v3",
);
