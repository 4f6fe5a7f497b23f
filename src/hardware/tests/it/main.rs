//! White-box tests that compare the simulated machine with simple simulators.

mod tile_transfers;
