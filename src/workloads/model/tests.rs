//! Compares the counts of presets with formulas and published numbers. Also tests that invalid
//! files are rejected.

use super::{LayerRole, Model};

mod architectures;
mod experts;
mod files;
mod hub_config;
mod multiplications;
mod operators;
mod parameters;
mod saved;

fn load_preset_model(name: &str) -> Model {
    Model::load_named(name).unwrap()
}

/// Returns the sum of `count` over the layers with the role `role`.
fn sum_over_layers_of_role(
    model: &Model,
    role: LayerRole,
    count: impl Fn(&super::ModelLayer) -> u64,
) -> u64 {
    let layers = model.layers.iter().filter(|layer| layer.role == role);
    layers.map(count).sum()
}
