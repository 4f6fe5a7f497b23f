//! White-box tests of the simulated machine, against plain simulators.

mod tile_transfers;
