//! Counts of presets against formulas and published numbers, and files that are refused.

use super::{LayerRole, Model};

mod architectures;
mod experts;
mod files;
mod hub_config;
mod multiplications;
mod operators;
mod parameters;
mod saved;

fn preset(name: &str) -> Model {
    Model::named(name).unwrap()
}

/// The sum of `count` over layers of role `role`.
fn over(model: &Model, role: LayerRole, count: impl Fn(&super::ModelLayer) -> u64) -> u64 {
    let layers = model.layers.iter().filter(|layer| layer.role == role);
    layers.map(count).sum()
}
