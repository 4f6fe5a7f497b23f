//! Body of the fuzz target for differences. The fuzz crate uses the same code. The tests of this module run that code
//! on every seed file.

mod diff;

use testkit::seeds::every_seed;

#[test]
fn seeds_of_differences_hold() {
    every_seed("diff", diff::run);
}
