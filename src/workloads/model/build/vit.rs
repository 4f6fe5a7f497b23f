//! Parses `kind = "vit"`: a transformer over an image's patches.

use super::{
    block_count_of_caller_or_file, parse_height_and_width, read_flag_or_default,
    read_positive_integer, read_size_or_default, reject_token_count_override, transformer,
};
use crate::model::{ModelLayer, TokenAndLayerCountOverrides, VisionTransformer};
use chakram_base::config::{ConfigError, ConfigTable};

pub(super) const KEYS: &[&str] = &[
    "layers", "hidden", "heads", "ffn", "image", "channels", "patch", "classes", "dropout",
];

/// Returns the number of tokens per sample, the hidden size, and the layers.
pub(super) fn parse_tokens_hidden_and_layers(
    root: &ConfigTable<'_>,
    sizes: TokenAndLayerCountOverrides,
) -> Result<(u64, Option<u64>, Vec<ModelLayer>), ConfigError> {
    reject_token_count_override(root, sizes.tokens)?;
    let layers = block_count_of_caller_or_file(root, sizes.layers)?;
    let hidden = read_positive_integer(root, "hidden")?;
    let image = parse_height_and_width(
        &root.require_field("image", "pixels of a side, or [height, width]")?,
    )?;
    let patch = read_positive_integer(root, "patch")?;
    if let Some(side) = image.into_iter().find(|side| !side.is_multiple_of(patch)) {
        return Err(root
            .require_field("patch", "pixels of a side")?
            .invalid_value_error(
                format_args!("patches of {patch} pixels in an image with a side of {side}"),
                "a number that divides the image's height and width",
            ));
    }
    let (heads, _, head_width) = transformer::parse_head_counts(root, hidden)?;
    let vit = VisionTransformer {
        layers,
        hidden,
        heads,
        head_width,
        ffn: read_size_or_default(root, "ffn", 1, hidden.saturating_mul(4))?,
        image,
        channels: read_size_or_default(root, "channels", 1, 3)?,
        patch,
        classes: read_positive_integer(root, "classes")?,
        dropout: read_flag_or_default(root, "dropout", false)?,
    };
    Ok((vit.token_count(), Some(hidden), vit.expand_layers()))
}
