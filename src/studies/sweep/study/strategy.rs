//! Parses strategies, and the layers of axes that they explore.

use super::MOST_POINTS;
use crate::sweep::axis::JointSettingsAxis;
use chakram_base::config::{
    ConfigError, ConfigTable, did_you_mean, find_most_similar_name, quote_and_truncate_for_message,
};

/// Keys that a layer may have.
const LAYER: &[&str] = &["axes", "strategy", "draws"];

/// Rule that selects which points of a layer to visit, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStrategy {
    /// Visits all points.
    Grid,
    /// Visits this number of points, drawn at random without replacement.
    Random(u64),
    /// Searches one axis at a time while the others stay fixed, until no axis improves the point.
    Coordinate,
    /// Visits points in the order of their lower bounds. Excludes points whose bound is no better than the best answer.
    BranchAndBound,
}

impl SearchStrategy {
    const NAMES: [&'static str; 4] = ["grid", "random", "coordinate", "branch-and-bound"];

    fn parse_strategy(table: &ConfigTable<'_>) -> Result<Self, ConfigError> {
        let draws = table.get("draws");
        let name = table.read_or_default("strategy", "grid", |field| {
            field.read_choice(&Self::NAMES.map(|name| (name, name)))
        })?;
        if let (Some(field), true) = (&draws, name != "random") {
            return Err(field.invalid_value_error(
                "draws",
                format_args!("none with strategy = {name:?}; or \"random\""),
            ));
        }
        Ok(match name {
            "random" => {
                let draws = table.require_field("draws", "the number of points to draw")?;
                Self::Random(draws.read_integer_between(1, MOST_POINTS)?)
            }
            "coordinate" => Self::Coordinate,
            "branch-and-bound" => Self::BranchAndBound,
            _ => Self::Grid,
        })
    }

    /// Returns true if the points are known before any of them is evaluated.
    pub fn can_list_points(self) -> bool {
        matches!(self, Self::Grid | Self::Random(_))
    }
}

/// Axes that one strategy explores.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisSubsetWithSearchStrategy {
    /// Indices of the layer's axes among the study's axes.
    pub axes: Vec<usize>,
    /// Strategy for these axes.
    pub strategy: SearchStrategy,
}

/// Parses all layers. A study without layers gets a single layer with all axes.
pub(super) fn parse_axis_layers_with_strategies(
    root: &ConfigTable<'_>,
    axes: &[JointSettingsAxis],
) -> Result<Vec<AxisSubsetWithSearchStrategy>, ConfigError> {
    let Some(field) = root.get("layer") else {
        return Ok(vec![AxisSubsetWithSearchStrategy {
            axes: (0..axes.len()).collect(),
            strategy: SearchStrategy::parse_strategy(root)?,
        }]);
    };
    if let Some(strategy) = root.get("strategy") {
        return Err(strategy
            .invalid_value_error("both a strategy and [[layer]]", "a strategy in each layer"));
    }
    let mut layers = Vec::new();
    let mut taken = vec![false; axes.len()];
    for table in field.read_tables(LAYER)? {
        let expected = "a list of names of axes";
        let items = table
            .require_field("axes", expected)?
            .read_array_items(expected)?;
        let mut of = Vec::new();
        for item in &items {
            let name = item.read_text("the name of an axis")?;
            let names = || axes.iter().map(|axis| axis.name.as_str());
            let found = names().position(|known| known == name);
            let index = found.ok_or_else(|| {
                let near = did_you_mean(find_most_similar_name(name, names()));
                let expected = format!("one of {}{near}", names().collect::<Vec<_>>().join(", "));
                item.invalid_value_error(
                    format_args!("the axis {}", quote_and_truncate_for_message(name)),
                    expected,
                )
            })?;
            if std::mem::replace(&mut taken[index], true) {
                return Err(item
                    .invalid_value_error("an axis for the second time", "each axis in one layer"));
            }
            of.push(index);
        }
        if of.is_empty() {
            return Err(table.invalid_table_error("no axis", "at least one"));
        }
        layers.push(AxisSubsetWithSearchStrategy {
            axes: of,
            strategy: SearchStrategy::parse_strategy(&table)?,
        });
    }
    if let Some(left) = taken.iter().position(|taken| !taken) {
        let found = format!(
            "the axis {} in no layer",
            quote_and_truncate_for_message(&axes[left].name)
        );
        return Err(field.invalid_value_error(found, "each axis in one layer"));
    }
    Ok(layers)
}
