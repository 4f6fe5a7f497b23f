//! The function that the fuzz target for comparisons runs. The fuzz crate includes this module, and the tests here run
//! it on every seed file.

mod diff;

use testkit::seeds::run_body_on_every_seed_file;

#[test]
fn every_diff_seed_passes_the_diff_target() {
    run_body_on_every_seed_file("diff", diff::run_diff_target);
}
