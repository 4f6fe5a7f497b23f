//! The body of the fuzz target for differences, shared with this file, run on every seed.

mod diff;

use testkit::seeds::every_seed;

#[test]
fn seeds_of_differences_hold() {
    every_seed("diff", diff::run);
}
