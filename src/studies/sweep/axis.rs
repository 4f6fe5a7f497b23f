//! Parses axes. An axis is a group of keys with a list of values.

use super::MOST_POINTS;
use super::setting::reject_unknown_key;
use chakram_base::config::{
    ConfigError, ConfigField, ConfigLiteral, ConfigTable, quote_and_truncate_for_message,
};
use chakram_base::ids::MAX_NPUS;

/// Keys that are set together, with their values.
#[derive(Clone, Debug, PartialEq)]
pub struct JointSettingsAxis {
    /// Name of the axis. By default, it consists of the keys.
    pub name: String,
    /// Keys that a position on the axis sets.
    pub keys: Vec<String>,
    /// Values at each position of the axis, one per key.
    pub values: Vec<Vec<ConfigLiteral>>,
    /// Number of NPUs of each plan, if this is an axis of plans.
    pub plans: Option<u32>,
    /// True if the values form a numeric range.
    pub is_range: bool,
}

impl JointSettingsAxis {
    /// Valid keys of an axis's table.
    pub(super) const KEYS: &[&str] = &[
        "name", "key", "keys", "values", "from", "to", "step", "factor", "divisors", "plans",
    ];

    /// Returns values that stand for the whole axis in checks. A key accepts either all numbers between two bounds, or
    /// all integers between them. A range is therefore valid if its two ends and one value of each type are valid.
    pub(super) fn representative_values_to_check(&self) -> Vec<&Vec<ConfigLiteral>> {
        if !self.is_range {
            return self.values.iter().collect();
        }
        let is_whole = |values: &&Vec<ConfigLiteral>| matches!(values[0], ConfigLiteral::Whole(_));
        let (first, last) = (self.values.first(), self.values.last());
        let other = first.and_then(|first| {
            let of_first = is_whole(&first);
            self.values
                .iter()
                .find(|values| is_whole(values) != of_first)
        });
        first.into_iter().chain(other).chain(last).collect()
    }
}

/// Keys that an axis of plans sets.
const DEGREES: [&str; 3] = ["plan.tensor", "plan.data", "plan.pipeline"];

pub(super) fn parse_axes(field: &ConfigField<'_>) -> Result<Vec<JointSettingsAxis>, ConfigError> {
    let tables = field.read_tables(JointSettingsAxis::KEYS)?;
    let mut axes: Vec<JointSettingsAxis> = Vec::new();
    for table in &tables {
        let axis = parse_axis_table(table)?;
        if axes.iter().any(|other| other.name == axis.name) {
            let found = format!(
                "the axis {} twice",
                quote_and_truncate_for_message(&axis.name)
            );
            return Err(table.invalid_table_error(found, "a different name for each axis"));
        }
        let mut keys = axes.iter().flat_map(|other| &other.keys);
        if let Some(twice) = keys.find(|key| axis.keys.contains(key)) {
            return Err(table.invalid_table_error(
                format_args!("{twice} in two axes"),
                "each key in one place",
            ));
        }
        axes.push(axis);
    }
    if axes.is_empty() {
        return Err(field.invalid_value_error("no axis", "at least one"));
    }
    Ok(axes)
}

fn parse_axis_table(table: &ConfigTable<'_>) -> Result<JointSettingsAxis, ConfigError> {
    let name = table.read_optional("name", |field| {
        field.read_one_line_text().map(str::to_owned)
    })?;
    if let Some(field) = table.get("plans") {
        reject_unused_keys(table, &["plans", "name"])?;
        let npus = field.read_count(MAX_NPUS)?;
        return Ok(JointSettingsAxis {
            name: name.unwrap_or_else(|| "plans".to_owned()),
            keys: DEGREES.map(str::to_owned).to_vec(),
            values: degree_combinations(npus),
            plans: Some(npus),
            is_range: false,
        });
    }
    let keys = parse_keys(table)?;
    let single = |allowed: &[&str]| {
        reject_unused_keys(table, allowed)?;
        match keys.len() {
            1 => Ok(()),
            _ => Err(table.invalid_table_error(
                "several keys",
                "`values` with a list for each point; or one key",
            )),
        }
    };
    let values = if let Some(field) = table.get("divisors") {
        single(&["name", "key", "divisors"])?;
        let number = field.read_integer_between(1, MOST_POINTS)?;
        divisors_of(number)
            .map(|divisor| vec![ConfigLiteral::Whole(divisor as i64)])
            .collect()
    } else if table.get("from").is_some() {
        single(&["name", "key", "from", "to", "step", "factor"])?;
        parse_range(table)?
            .into_iter()
            .map(|value| vec![value])
            .collect()
    } else {
        reject_unused_keys(table, &["name", "key", "keys", "values"])?;
        let expected = "a list of values, `from` and `to`, `divisors`, or `plans`";
        let items = table
            .require_field("values", expected)?
            .read_array_items(expected)?;
        let value = |item: &ConfigField<'_>| {
            match (keys.len(), item.read_literal()?) {
            (1, ConfigLiteral::Text(text)) => match parse_dotted_range_ends(&text) {
                None => Ok(vec![ConfigLiteral::Text(text)]),
                Some((from, to)) => Err(item.invalid_value_error(
                    format_args!("the text {}", quote_and_truncate_for_message(&text)),
                    format_args!(
                        "`from = {from}` and `to = {to}` in place of `values`, with `step` or `factor`"
                    ),
                )),
            },
            (1, one) => Ok(vec![one]),
            (count, ConfigLiteral::List(all)) if all.len() == count => Ok(all),
            (count, _) => Err(item.invalid_value_error(
                "this value",
                format_args!("a list of {count} values, one for each key"),
            )),
        }
        };
        items.iter().map(value).collect::<Result<Vec<_>, _>>()?
    };
    if values.is_empty() {
        return Err(table.invalid_table_error("no value", "at least one"));
    }
    Ok(JointSettingsAxis {
        name: name.unwrap_or_else(|| keys.join(", ")),
        keys,
        values,
        plans: None,
        is_range: table.get("from").is_some(),
    })
}

/// Returns the ends of a range that is written `1..8`, as in other languages; `None` if the text has another form.
fn parse_dotted_range_ends(text: &str) -> Option<(&str, &str)> {
    let (from, to) = text.split_once("..")?;
    let to = to.trim_start_matches(['=', '.']);
    let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
    (is_number(from) && is_number(to)).then_some((from.trim(), to.trim()))
}

/// Rejects keys that this kind of axis does not use.
fn reject_unused_keys(table: &ConfigTable<'_>, allowed: &[&str]) -> Result<(), ConfigError> {
    for (name, field) in table.fields() {
        if !allowed.contains(&name) {
            let beside = allowed.iter().filter(|key| table.get(key).is_some());
            let beside: Vec<_> = beside.copied().collect();
            let found = format!("`{name}` beside {}", beside.join(", "));
            return Err(
                field.invalid_value_error(found, format_args!("only {}", allowed.join(", ")))
            );
        }
    }
    Ok(())
}

fn parse_keys(table: &ConfigTable<'_>) -> Result<Vec<String>, ConfigError> {
    let normal = |field: &ConfigField<'_>| {
        let key = field.read_text("a key")?;
        reject_unknown_key(key, field)?;
        // Plan options may be spelled with dashes or underscores; other paths must be spelled as in
        // their files.
        Ok(match key.strip_prefix("plan.") {
            Some(option) => format!("plan.{}", option.replace('-', "_")),
            None => key.to_owned(),
        })
    };
    match (table.get("key"), table.get("keys")) {
        (Some(key), None) => Ok(vec![normal(&key)?]),
        (None, Some(keys)) => {
            let items = keys.read_array_items("a list of keys")?;
            let all: Vec<String> = items.iter().map(normal).collect::<Result<_, _>>()?;
            let twice = (1..).zip(&all).any(|(i, key)| all[i..].contains(key));
            if all.is_empty() || twice {
                return Err(
                    keys.invalid_value_error("this list", "at least one key, and each once")
                );
            }
            Ok(all)
        }
        (Some(_), Some(keys)) => {
            Err(keys.invalid_value_error("both `keys` and `key`", "one of the two"))
        }
        (None, None) => Err(table.missing_entry_error(
            "key",
            "the key that the axis sets, or `plans`, a number of NPUs",
        )),
    }
}

/// Returns the divisors of `number` in ascending order.
pub fn divisors_of(number: u64) -> impl Iterator<Item = u64> {
    (1..=number).filter(move |divisor| number.is_multiple_of(*divisor))
}

/// Returns all combinations of tensor, data and pipeline degrees that multiply to `npus`.
fn degree_combinations(npus: u32) -> Vec<Vec<ConfigLiteral>> {
    let npus = u64::from(npus);
    let tensors = divisors_of(npus)
        .flat_map(|tensor| divisors_of(npus / tensor).map(move |data| (tensor, data)));
    let all = tensors.map(|(tensor, data)| [tensor, data, npus / tensor / data]);
    all.map(|degrees| {
        degrees
            .map(|degree| ConfigLiteral::Whole(degree as i64))
            .to_vec()
    })
    .collect()
}

/// Splits a value into its number and its unit.
fn split_unit(field: &ConfigField<'_>) -> Result<(f64, String), ConfigError> {
    let literal = field.read_literal()?;
    if let Some(number) = literal.as_number() {
        return Ok((number, String::new()));
    }
    let text = literal.to_string();
    let end = text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '-' | '+' | '_'));
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    match number.replace('_', "").parse::<f64>() {
        Ok(number) if number.is_finite() => Ok((number, unit.trim().to_owned())),
        _ => Err(field.invalid_value_error(
            quote_and_truncate_for_message(&text),
            "a number, or one with a unit such as \"100 GB/s\"",
        )),
    }
}

/// Returns the values from `from` to `to`, spaced by `step` or by powers of `factor`.
fn parse_range(table: &ConfigTable<'_>) -> Result<Vec<ConfigLiteral>, ConfigError> {
    let (first, unit) = split_unit(&table.require_field("from", "the first value")?)?;
    let to = table.require_field("to", "the last value")?;
    let (last, other) = split_unit(&to)?;
    if unit != other {
        let found = format!("the unit {}", quote_and_truncate_for_message(&other));
        return Err(to.invalid_value_error(
            found,
            format_args!("{}, as `from` has", quote_and_truncate_for_message(&unit)),
        ));
    }
    if last < first {
        return Err(to.invalid_value_error(
            format_args!("{last}"),
            format_args!("at least {first}, the first value"),
        ));
    }
    let (by, field, is_factor) = match (table.get("step"), table.get("factor")) {
        (Some(step), None) => {
            let (by, step_unit) = split_unit(&step)?;
            if step_unit != unit {
                return Err(step.invalid_value_error(
                    quote_and_truncate_for_message(&step_unit),
                    format_args!("the unit {}", quote_and_truncate_for_message(&unit)),
                ));
            }
            (by, step, false)
        }
        (None, Some(factor)) => (factor.read_positive(1e9)?, factor, true),
        (None, None) => {
            return Err(
                table.missing_entry_error("step", "the distance between two values, or `factor`")
            );
        }
        (Some(_), Some(factor)) => {
            return Err(factor.invalid_value_error("both `factor` and `step`", "one of the two"));
        }
    };
    if by <= f64::from(u8::from(is_factor)) || (is_factor && first <= 0.0) {
        let expected = if is_factor {
            "a factor above 1, from a value above 0"
        } else {
            "a step above 0"
        };
        return Err(field.invalid_value_error(format_args!("{by}"), expected));
    }
    let mut values = Vec::new();
    for i in 0_u32.. {
        // Compute each value from the first one, so that rounding errors do not accumulate.
        let exact = if is_factor {
            first * by.powi(i as i32)
        } else {
            first + f64::from(i) * by
        };
        if exact > last * (1.0 + 1e-12) + f64::MIN_POSITIVE {
            break;
        }
        if values.len() as u64 >= MOST_POINTS {
            return Err(field.invalid_value_error(
                "more values than a study may have",
                format_args!("at most {MOST_POINTS}"),
            ));
        }
        let value = (exact * 1e9).round() / 1e9;
        let value = if exact.abs() < 1e6 { value } else { exact };
        values.push(if !unit.is_empty() {
            ConfigLiteral::Text(format!("{value} {unit}"))
        } else if value.fract() == 0.0 && value.abs() < 9e15 {
            ConfigLiteral::Whole(value as i64)
        } else {
            ConfigLiteral::Number(value)
        });
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_are_all_ordered_factorizations() {
        // 8 = 2^3 has C(3 + 2, 2) = 10 factorizations into three ordered factors, and 12 = 2^2 x 3
        // has 6 x 3 = 18.
        assert_eq!(degree_combinations(8).len(), 10);
        assert_eq!(degree_combinations(12).len(), 18);
        for degrees in degree_combinations(12) {
            let product: f64 = degrees
                .iter()
                .filter_map(ConfigLiteral::as_number)
                .product();
            assert_eq!(product, 12.0);
        }
        assert_eq!(divisors_of(12).collect::<Vec<_>>(), [1, 2, 3, 4, 6, 12]);
    }

    #[test]
    fn a_range_is_tried_at_its_ends_and_where_its_values_have_another_type() {
        let whole = ConfigLiteral::Whole;
        let mut axis = JointSettingsAxis {
            name: String::new(),
            keys: vec!["model.layers".to_owned()],
            values: [whole(1), ConfigLiteral::Number(1.5), whole(2), whole(3)]
                .map(|value| vec![value])
                .to_vec(),
            plans: None,
            is_range: true,
        };
        let samples = |axis: &JointSettingsAxis| {
            axis.representative_values_to_check()
                .into_iter()
                .flatten()
                .cloned()
                .collect()
        };
        let all: Vec<ConfigLiteral> = samples(&axis);
        assert_eq!(all, [whole(1), ConfigLiteral::Number(1.5), whole(3)]);
        axis.is_range = false;
        let all: Vec<ConfigLiteral> = samples(&axis);
        assert_eq!(all.len(), 4);
    }
}
