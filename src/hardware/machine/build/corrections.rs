//! The `correction` tables: factors on durations, derived from measured steps.

use crate::machine::PassKernelTimeCorrection;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable};

const KEYS: &[&str] = &["gemms", "factor", "error"];

/// Maximum factor or relative error that a file may state.
const MOST: f64 = 100.0;

/// Parses the corrections in the order of the file.
pub(super) fn parse_pass_kernel_time_corrections(
    root: &ConfigTable<'_>,
) -> Result<Vec<PassKernelTimeCorrection>, ConfigError> {
    let Some(field) = root.get("correction") else {
        return Ok(Vec::new());
    };
    let mut corrections: Vec<PassKernelTimeCorrection> = Vec::new();
    for table in field.read_tables(KEYS)? {
        let expected = "two matrix multiplications, each as [rows, columns, summed over]";
        let gemms = table.read_optional("gemms", |field| {
            let [first, second] = field.read_array_of_exact_length("products", expected)?;
            Ok([parse_product_sizes(&first)?, parse_product_sizes(&second)?])
        })?;
        if corrections.iter().any(|known| known.gemms == gemms) {
            let found = match gemms {
                Some(_) => "a second correction of the same matrix multiplications",
                None => "a second correction of all other matrix multiplications",
            };
            return Err(table.invalid_table_error(found, "one correction for each"));
        }
        let number = |key: &str| {
            let field = table.require_field(key, "a number above zero")?;
            field.read_positive(MOST)
        };
        corrections.push(PassKernelTimeCorrection {
            gemms,
            factor: number("factor")?,
            error: number("error")?,
        });
    }
    Ok(corrections)
}

/// Parses the sizes of a matrix product.
fn parse_product_sizes(field: &ConfigField<'_>) -> Result<[u64; 3], ConfigError> {
    let expected = "three sizes of a matrix multiplication, [rows, columns, summed over]";
    let size = |field: ConfigField<'_>| field.read_count(u32::MAX).map(u64::from);
    let [rows, columns, summed] = field
        .read_array_of_exact_length("sizes", expected)?
        .map(size);
    Ok([rows?, columns?, summed?])
}
