//! Body of the fuzz target for differences. The fuzz crate uses this module as its fuzz target. The tests of this
//! module run the fuzz target on every seed file.

mod diff;

use testkit::seeds::every_seed;

#[test]
fn seeds_of_differences_hold() {
    every_seed("diff", diff::run);
}
