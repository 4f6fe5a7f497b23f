//! The `correction` tables: factors on prices from measured steps.

use crate::config::{ConfigError, ConfigTable};
use crate::machine::PriceCorrection;

const KEYS: &[&str] = &["gemm", "factor", "error"];

/// Largest factor and error.
const MOST: f64 = 100.0;

/// The corrections, as the file orders them.
pub(super) fn corrections(root: &ConfigTable<'_>) -> Result<Vec<PriceCorrection>, ConfigError> {
    let Some(field) = root.get("correction") else {
        return Ok(Vec::new());
    };
    let mut corrections: Vec<PriceCorrection> = Vec::new();
    for table in field.tables(KEYS)? {
        let expected = "three sizes of a product, [rows, columns, summed over]";
        let field = table.need("gemm", expected)?;
        let items = field.items(expected)?;
        let sizes = items.iter().map(|item| item.count(u32::MAX).map(u64::from));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        let Ok(gemm) = <[u64; 3]>::try_from(sizes) else {
            return Err(field.refuse(format_args!("{} sizes", items.len()), expected));
        };
        if corrections.iter().any(|known| known.gemm == gemm) {
            return Err(field.refuse("a second correction of this product", "one for each"));
        }
        let number = |key: &str| {
            let field = table.need(key, "a number above zero")?;
            field.positive(MOST)
        };
        corrections.push(PriceCorrection {
            gemm,
            factor: number("factor")?,
            error: number("error")?,
        });
    }
    Ok(corrections)
}
