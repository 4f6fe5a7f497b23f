//! Integration tests: the program and the library as users see them, in one binary.
//!
//! - `archive`: archives: packing, damage, interrupted commands and full disks; questions, and moved predictions
//! - `astra_sim`: files and flags of ASTRA-sim, and a plain simulator that is compared with its answers
//! - `book`: the commands of README.md and `docs/`, whose output is compared, and links
//! - `bounds`: small inputs and options that need huge amounts of memory or time
//! - `cases`: the goldens under `traces/`
//! - `diff`: differences of two traces, or of two reports
//! - `generated`: generated captures of PyTorch, against their truth and against real ones
//! - `commands`: exit codes, the order of files, and outputs
//! - `compare`: one job on several machines, against reports of each machine
//! - `convert`: conversions of captures, against the truth of generated jobs
//! - `crates`: allowed dependencies between crates and on packages, and no cycles among modules
//! - `critical_path`: the critical path and slack of replays, by hand and against replays
//! - `custom`: `--custom`, its files and their errors
//! - `deap`: schedules of sub-layers on chips: relations that follow from the rules, and replays of the schedules
//! - `pool_residency`: plans that keep data in remote memory if it does not fit into NPUs
//! - `edit`: slices, anonymised and scaled traces, and audits, against formulas and against other ways to get the same
//!   result
//! - `fabric`: individual links: slow ones, graphs, Clos networks, and bytes over each
//! - `failures`: links and NPUs that fail, against machines that lack them and sums by hand
//! - `files`: written and read files: devices, links, signals, full disks, jobs as one unit, names from files
//! - `corpus`: traces of other tools, from the folder that `CHAKRAM_CORPUS` names
//! - `forms`: traces in the format of 2023, text traces and damaged traces
//! - `harness`: the bodies of the fuzz targets, run on every seed
//! - `host`: host time on other machines, and jobs that were captured on CPUs
//! - `inspect`: contents of traces, against plain parses, replays as captured and sums by hand
//! - `memory`: the peak memory of NPUs, by hand and against sorted events, and its reports
//! - `option_rules`: options of replays in studies and on command lines
//! - `operators`: operators summed over micro-batches, against the full list
//! - `option_names`: the library names no option of the command line
//! - `page`: the page of a report, against its JSON and in a browser
//! - `paper`: results of the ASTRA-sim 2.0 paper, from the machine files of the cases
//! - `networks`: the choice of the network model
//! - `peaks`: number formats that a machine lacks
//! - `prices`: times of kernels, hosts and collectives against measurements, and scores
//! - `physics`: times of collectives, messages, memory, lanes and groups, against formulas and a simulator of a few
//!   lines that shares no code with the engine; rejected and stuck jobs
//! - `rates`: samples and tokens per second, MFU and HFU, against their formulas
//! - `price_changes`: changes of kernels, collectives, ranks and machine keys
//! - `reports`: reports read back, against the printed ones
//! - `schema`: the compiled schema of traces, against its source
//! - `serve`: requests over time, against formulas, plain simulators and LIGHTSPEED's results
//! - `sources`: sources other than PyTorch, against other tools, and format detection
//! - `sweep`: search strategies against a replay of all points, threads, shards, kills, and errors
//! - `tile_studies`: claims in the figures of the paper on tiles, compared with our results
//! - `tiles`: models on tiled accelerators: placement, SRAM, networks, and errors
//! - `timeline`: the picture of a replay, parsed back
//! - `training`: models under plans, over a grid of models and plans, and against formulas
//! - `training_times`: training steps measured on clusters, predicted from model and plan
//! - `validate`: defects put into sound traces and found again, and compared with replays
//! - `what_if`: transforms of jobs, against generated jobs, their inverses and measured runs
//! - `wrong_inputs`: typing errors by class, and the program's errors

#[cfg(unix)]
mod archive;
mod astra_sim;
#[cfg(unix)]
mod book;
mod bounds;
mod cases;
mod commands;
mod compare;
mod convert;
mod corpus;
mod cost;
mod crates;
mod critical_path;
mod custom;
mod deap;
mod diff;
mod edit;
mod fabric;
mod failures;
#[cfg(unix)]
mod files;
mod forms;
mod generated;
mod harness;
#[cfg(unix)]
mod host;
mod inspect;
mod memory;
mod networks;
mod node_table;
mod operators;
mod option_names;
mod option_rules;
mod page;
mod paper;
mod peaks;
mod physics;
mod pool_residency;
mod price_changes;
mod prices;
mod racks;
mod rates;
mod relatives;
mod reports;
mod schema;
mod serve;
mod sources;
mod stacks;
mod streams;
mod sweep;
#[cfg(unix)]
mod tile_studies;
mod tiles;
mod timeline;
mod training;
mod training_times;
mod validate;
mod what_if;
mod wrong_inputs;
