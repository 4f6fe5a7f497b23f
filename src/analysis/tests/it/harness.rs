//! Body of the fuzz target for differences. The fuzz crate uses the same code; these tests run it on every seed file.

mod diff;

use testkit::seeds::every_seed;

#[test]
fn seeds_of_differences_hold() {
    every_seed("diff", diff::run);
}
