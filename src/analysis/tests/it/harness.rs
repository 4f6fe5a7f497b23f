//! The function that the fuzz target for comparisons runs. The fuzz crate includes this module, and the tests here run
//! it on every seed file.

mod diff;

use testkit::seeds::run_on_every_seed;

#[test]
fn every_diff_seed_passes_the_diff_target() {
    run_on_every_seed("diff", diff::run_diff_target);
}
