//! An example of [`chakram::extend`]: one new model of each kind, each in a file of its own, and replays with them.
//!
//! To add a model, write such a file and pass the model to the replay as `tests/models.rs` does.

pub mod hub;
pub mod speed;
pub mod star;
pub mod tape;
