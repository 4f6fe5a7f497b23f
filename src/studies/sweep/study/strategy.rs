//! Strategies, and the layers of axes that they explore.

use super::MOST_POINTS;
use crate::sweep::axis::StudyAxis;
use chakram_base::config::{ConfigError, ConfigTable, did_you_mean, nearest, quoted};

/// Keys that a layer may have.
const LAYER: &[&str] = &["axes", "strategy", "draws"];

/// Order in which a layer's points are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStrategy {
    /// Visits all points.
    Grid,
    /// Visits this number of points, drawn at random without replacement.
    Random(u64),
    /// Searches one axis after another while the others stay fixed, until no axis improves the
    /// point.
    Coordinate,
    /// Visits points in the order of their bounds, except points that a lower bound excludes.
    BranchAndBound,
}

impl SearchStrategy {
    const NAMES: [&'static str; 4] = ["grid", "random", "coordinate", "branch-and-bound"];

    fn parse_strategy(table: &ConfigTable<'_>) -> Result<Self, ConfigError> {
        let draws = table.get("draws");
        let name = table.or("strategy", "grid", |field| {
            field.choice(&Self::NAMES.map(|name| (name, name)))
        })?;
        if let (Some(field), true) = (&draws, name != "random") {
            return Err(field.refuse(
                "draws",
                format_args!("none with strategy = {name:?}; or \"random\""),
            ));
        }
        Ok(match name {
            "random" => {
                let draws = table.need("draws", "the number of points to draw")?;
                Self::Random(draws.between(1, MOST_POINTS)?)
            }
            "coordinate" => Self::Coordinate,
            "branch-and-bound" => Self::BranchAndBound,
            _ => Self::Grid,
        })
    }

    /// Returns true if the points are known before any of them is evaluated.
    pub fn lists(self) -> bool {
        matches!(self, Self::Grid | Self::Random(_))
    }
}

/// Axes that one strategy explores.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyLayer {
    /// Indices among the study's axes.
    pub axes: Vec<usize>,
    /// Strategy for these axes.
    pub strategy: SearchStrategy,
}

/// Parses all layers. If the study has no layers, creates a single layer with all axes.
pub(super) fn parse_layers(
    root: &ConfigTable<'_>,
    axes: &[StudyAxis],
) -> Result<Vec<StudyLayer>, ConfigError> {
    let Some(field) = root.get("layer") else {
        return Ok(vec![StudyLayer {
            axes: (0..axes.len()).collect(),
            strategy: SearchStrategy::parse_strategy(root)?,
        }]);
    };
    if let Some(strategy) = root.get("strategy") {
        return Err(strategy.refuse("both a strategy and [[layer]]", "a strategy in each layer"));
    }
    let mut layers = Vec::new();
    let mut taken = vec![false; axes.len()];
    for table in field.tables(LAYER)? {
        let expected = "a list of names of axes";
        let items = table.need("axes", expected)?.items(expected)?;
        let mut of = Vec::new();
        for item in &items {
            let name = item.text("the name of an axis")?;
            let names = || axes.iter().map(|axis| axis.name.as_str());
            let found = names().position(|known| known == name);
            let index = found.ok_or_else(|| {
                let near = did_you_mean(nearest(name, names()));
                let expected = format!("one of {}{near}", names().collect::<Vec<_>>().join(", "));
                item.refuse(format_args!("the axis {}", quoted(name)), expected)
            })?;
            if std::mem::replace(&mut taken[index], true) {
                return Err(item.refuse("an axis for the second time", "each axis in one layer"));
            }
            of.push(index);
        }
        if of.is_empty() {
            return Err(table.refuse("no axis", "at least one"));
        }
        layers.push(StudyLayer {
            axes: of,
            strategy: SearchStrategy::parse_strategy(&table)?,
        });
    }
    if let Some(left) = taken.iter().position(|taken| !taken) {
        let found = format!("the axis {} in no layer", quoted(&axes[left].name));
        return Err(field.refuse(found, "each axis in one layer"));
    }
    Ok(layers)
}
