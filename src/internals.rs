//! The rooms as they are inside, for the program, tests, benches and fuzz targets. It is no part of the interface: names
//! here change without notice.

#![allow(missing_docs, reason = "each stands for the module of its name")]

/// Shows rooms and modules in them.
macro_rules! show {
    ($($room:ident $(: $($inner:ident)+)?;)+) => {$(
        pub mod $room {
            pub use crate::$room::*;
            $($(pub mod $inner {
                pub use crate::$room::$inner::*;
            })+)?
        }
    )+};
}

show! {
    archive;
    astra_sim: custom_algorithm logging;
    bounds: allocator;
    collective: auto;
    compute;
    config;
    diff: differences matching render reports tally;
    edit: anonymise audit scale slice;
    engine;
    files;
    generate: chain collective data_parallel memory p2p plan schedule sharding training;
    graph: neighbourhood builder cycle dot huge_pages raw_trace captured_timeline;
    group;
    ids;
    inspect;
    job;
    machine;
    memory;
    model;
    network;
    report: breakdown busy collectives compare csv json memory npus operators spans summary table text timeline;
    topology;
    trace: attr error file format groups job labels old_schemas op proto encoder signal_safe_list roles salvage scan source split_sizes tensors text wire write;
    units;
    validate;
    workload;
}

pub mod converters {
    pub use crate::converters::{goal, msccl, pytorch, simai, text_workload, xplane};
}

pub mod cli {
    pub use crate::cli::main;
}
