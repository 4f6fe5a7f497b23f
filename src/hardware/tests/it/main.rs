//! White-box tests of the simulated machine, which is compared with simple simulators.

mod tile_transfers;
