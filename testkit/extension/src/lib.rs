//! An example of [`chakram::extend`]: one new model of each kind in a separate file, and replays that use these models.
//!
//! To add your own model, write such a file and pass the model to the replay, as in `tests/models.rs`.

pub mod hub;
pub mod speed;
pub mod star;
pub mod tape;
