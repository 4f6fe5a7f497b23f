//! An example of [`chakram::extend`]: one model of each kind that chakram does not have, a file each, and replays with them.
//!
//! To add one of your own, write such a file, and hand the model to the replay as `tests/models.rs` does.

pub mod hub;
pub mod speed;
pub mod star;
pub mod tape;
