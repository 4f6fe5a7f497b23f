//! Integration tests: the program and the library as users see them, in one binary.
//!
//! - `archive`: packed and unpacked, damaged, killed and full; questions, and predictions that moved
//! - `astra_sim`: files and flags of ASTRA-sim, and a plain simulator of it held against its own answers
//! - `book`: every command of README.md and `docs/`, run and compared, and their links
//! - `bounds`: inputs and options that ask for far more than they are
//! - `cases`: the goldens under `traces/`
//! - `diff`: what the program says of two traces, or of two reports
//! - `generated`: generated captures of PyTorch, against their truth and against real ones
//! - `commands`: exit codes, the order of files, and what goes where
//! - `compare`: one job on several machines, against the single reports
//! - `convert`: conversions of captures, against the truth of generated jobs
//! - `crates`: which crate uses which, which package has which door, and no circles among modules
//! - `critical_path`: the critical path of replays and slack, by hand and against replays
//! - `custom`: `--custom`, its files and what is wrong with them
//! - `deap`: schedules of sub-layers on chips, as relations that follow from the rules, and their replays
//! - `pool_residency`: plans that keep in remote memory what their NPUs do not hold
//! - `edit`: slices, anonymised and scaled traces, and audits, against formulas and other ways to the same
//! - `fabric`: links told apart: slow ones, graphs, Clos networks, and bytes over each
//! - `failures`: links and NPUs that fail, against machines that lack them and sums by hand
//! - `files`: what is written and read: devices, links, signals, full disks, jobs as one thing, names from files
//! - `corpus`: traces that other tools wrote, where the environment says they are
//! - `forms`: traces of 2023, traces as text, and damaged ones, through the program
//! - `harness`: the bodies of the fuzz targets, run on every seed
//! - `host`: host time on other machines, and jobs that were captured on CPUs
//! - `inspect`: what is in traces, against plain parses, replays as captured and sums by hand
//! - `memory`: the peak memory of NPUs, by hand and against sorted events, and what is said of it
//! - `option_rules`: options of replays in studies and on command lines
//! - `operators`: operators over micro-batches, against the list of all
//! - `option_names`: the library names no option of the command line
//! - `page`: the page of a report, against its JSON and in a browser
//! - `paper`: what the ASTRA-sim 2.0 paper reports, from the machine files of the cases
//! - `networks`: which model of the network is taken, and who says so
//! - `peaks`: number formats that a machine lacks
//! - `prices`: prices of kernels, hosts and collectives against measurements, and scores
//! - `physics`: what collectives, messages, memory, lanes and groups take, against formulas and a
//!   simulator of a few lines that shares nothing with the engine; and what is refused or stuck
//! - `rates`: samples and tokens per second, MFU and HFU, against their formulas
//! - `price_changes`: other kernels, collectives, ranks and machine keys than those of a job and its machine
//! - `reports`: reports read back, against what was printed
//! - `schema`: the compiled schema of traces, against its source
//! - `serve`: requests over time, against formulas and plain simulators, and what LIGHTSPEED prints
//! - `sources`: sources beside PyTorch's, against other tools, and the one door to all
//! - `sweep`: strategies against replaying all points, threads, shards, kills, and refusals
//! - `tile_studies`: what the figures of the paper on tiles claim, beside what comes out
//! - `tiles`: models on tiled accelerators: placement, SRAM, networks, and what is refused
//! - `timeline`: the picture of a replay, parsed back
//! - `training`: models under plans, over a grid of them and against formulas
//! - `training_times`: steps of training that were measured on clusters, predicted from model and plan
//! - `validate`: what is wrong with traces, put into sound ones and found again, and held against replays
//! - `what_if`: edits of jobs, against generated jobs, their inverses and measured runs
//! - `wrong_inputs`: what people mistype, by class, and what the program says to it

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
