//! Integration tests: the program and the library as users see them.
//!
//! - `cases`: the goldens under `traces/`

mod cases;
