//! The `correction` tables: factors on durations, derived from measured steps.

use crate::machine::PriceCorrection;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};

const KEYS: &[&str] = &["gemms", "factor", "error"];

/// Maximum factor, and maximum relative error.
const MOST: f64 = 100.0;

/// Parses the corrections in the order of the file.
pub(super) fn corrections(root: &ConfigTable<'_>) -> Result<Vec<PriceCorrection>, ConfigError> {
    let Some(field) = root.get("correction") else {
        return Ok(Vec::new());
    };
    let mut corrections: Vec<PriceCorrection> = Vec::new();
    for table in field.tables(KEYS)? {
        let expected = "two matrix multiplications, each as [rows, columns, summed over]";
        let gemms = table.optional("gemms", |field| {
            let [first, second] = field.array("products", expected)?;
            Ok([product(&first)?, product(&second)?])
        })?;
        if corrections.iter().any(|known| known.gemms == gemms) {
            let found = match gemms {
                Some(_) => "a second correction of the same matrix multiplications",
                None => "a second correction of all other matrix multiplications",
            };
            return Err(table.refuse(found, "one correction for each"));
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

/// Parses the sizes of a matrix product.
fn product(field: &ConfigField<'_>) -> Result<[u64; 3], ConfigError> {
    let expected = "three sizes of a matrix multiplication, [rows, columns, summed over]";
    let size = |field: ConfigField<'_>| field.count(u32::MAX).map(u64::from);
    let [rows, columns, summed] = field.array("sizes", expected)?.map(size);
    Ok([rows?, columns?, summed?])
}
