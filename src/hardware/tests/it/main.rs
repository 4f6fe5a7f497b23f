//! White-box tests of the simulated machine, compared with simple simulators.

mod tile_transfers;
