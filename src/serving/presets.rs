//! Built-in platforms.

/// A built-in platform.
#[derive(Clone, Copy, Debug)]
pub struct PlatformPreset {
    /// Name by which `--machine` selects the platform.
    pub name: &'static str,
    /// Text of the platform's file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All built-in platforms. The numbers come from LIGHTSPEED's thesis, a later publication about it, and other
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
