//! Built-in platforms.

/// A built-in platform.
#[derive(Clone, Copy, Debug)]
pub struct PlatformPreset {
    /// Name for `--machine`.
    pub name: &'static str,
    /// Text of its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Every platform: the platforms of the thesis, of its successor, and of other
        /// publications.
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
