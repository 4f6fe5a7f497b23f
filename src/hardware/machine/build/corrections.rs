//! The `correction` tables: factors on prices from measured steps.

use crate::machine::PriceCorrection;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};

const KEYS: &[&str] = &["gemms", "factor", "error"];

/// Largest factor and error.
const MOST: f64 = 100.0;

/// The corrections, as the file orders them.
pub(super) fn corrections(root: &ConfigTable<'_>) -> Result<Vec<PriceCorrection>, ConfigError> {
    let Some(field) = root.get("correction") else {
        return Ok(Vec::new());
    };
    let mut corrections: Vec<PriceCorrection> = Vec::new();
    for table in field.tables(KEYS)? {
        let expected = "two products, each [rows, columns, summed over]";
        let field = table.need("gemms", expected)?;
        let items = field.items(expected)?;
        let products = items.iter().map(product).collect::<Result<Vec<_>, _>>()?;
        let Ok(gemms) = <[[u64; 3]; 2]>::try_from(products) else {
            return Err(field.refuse(format_args!("{} products", items.len()), expected));
        };
        if corrections.iter().any(|known| known.gemms == gemms) {
            return Err(field.refuse("a second correction of these products", "one for each"));
        }
        let number = |key: &str| {
            let field = table.need(key, "a number above zero")?;
            field.positive(MOST)
        };
        corrections.push(PriceCorrection {
            gemms,
            factor: number("factor")?,
            error: number("error")?,
        });
    }
    Ok(corrections)
}

/// Sizes of a product.
fn product(field: &ConfigField<'_>) -> Result<[u64; 3], ConfigError> {
    let expected = "three sizes of a product, [rows, columns, summed over]";
    let items = field.items(expected)?;
    let sizes = items.iter().map(|item| item.count(u32::MAX).map(u64::from));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    <[u64; 3]>::try_from(sizes)
        .map_err(|_| field.refuse(format_args!("{} sizes", items.len()), expected))
}
