//! `chakram machine new`: creates a machine file from datasheet values and a similar machine.

use chakram_base::dtype::Dtype;
use chakram_base::units::{Bandwidth, Bytes, FlopRate, Span};
use chakram_hardware::machine::{
    KnownMachineDatasheetOverrides, Machine, derive_relative_machine,
    find_source_by_machine_or_npu_name, parse_number_format_and_peak_rate,
};
use chakram_trace::files::OutputsAndProtectedInputs;
use clap::Args;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `machine new`.
#[derive(Debug, Args)]
pub struct NewMachineArgs {
    /// Name of the machine and of its NPU: letters, digits, - and _
    #[arg(value_name = "NAME", value_parser = parse_machine_name)]
    name: String,
    /// Similar machine: a preset, the NPU of a preset such as h100, or a file
    #[arg(long, value_name = "MACHINE")]
    from: String,
    /// Dense peak rate of a number format, such as bf16=989TFLOP/s; comma-separated
    #[arg(long, value_name = "FORMAT=RATE", value_delimiter = ',', value_parser = parse_number_format_and_peak_rate)]
    peak: Vec<(Dtype, FlopRate)>,
    /// Capacity of an NPU's memory, such as 141GB
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Bandwidth of an NPU's memory, such as 4.8TB/s
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<Bandwidth>,
    /// Bandwidth of an NPU inside a node, summed over both directions as in datasheets, such as 900GB/s
    #[arg(long, value_name = "RATE")]
    link: Option<Bandwidth>,
    /// Latency of a link inside a node, such as 400ns
    #[arg(long, value_name = "TIME")]
    link_latency: Option<Span>,
    /// Bandwidth of an NPU's port between nodes, per direction, such as 400Gbit/s
    #[arg(long, value_name = "RATE")]
    nic: Option<Bandwidth>,
    /// NPUs per node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    npus_per_node: Option<u32>,
    /// Multiprocessors per NPU
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    multiprocessors: Option<u32>,
    /// Dollars per NPU hour
    #[arg(long, value_name = "DOLLARS", value_parser = crate::output::parse_npu_hour_price)]
    price: Option<f64>,
    /// Write to this file; standard output by default
    #[arg(short, long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
}

/// Parses a name that TOML allows without quotes.
fn parse_machine_name(text: &str) -> Result<String, String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    match !text.is_empty() && text.len() <= 80 && text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits, - and _, such as b300".to_owned()),
    }
}

/// Creates the machine file and writes it.
pub fn run(args: &NewMachineArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let twice = args
        .peak
        .iter()
        .enumerate()
        .find(|(i, (dtype, _))| args.peak[..*i].iter().any(|(other, _)| other == dtype));
    if let Some((_, (dtype, _))) = twice {
        return Err(format!("--peak {dtype}=… is given twice").into());
    }
    let sheet = KnownMachineDatasheetOverrides {
        peaks: args.peak.clone(),
        memory: args.memory,
        bandwidth: args.bandwidth,
        link: args.link,
        link_latency: args.link_latency,
        nic: args.nic,
        npus_per_node: args.npus_per_node,
        multiprocessors: args.multiprocessors,
        price: args.price,
    };
    let from = find_source_by_machine_or_npu_name(&args.from)?;
    let text = derive_relative_machine(&args.name, &from, &sheet)?;
    let old = Machine::parse(&from.text, &from.file)?;
    let classes = old.npu_classes().iter();
    let kept = classes.flat_map(|class| {
        let known = Dtype::ALL
            .iter()
            .filter(|(dtype, _)| class.peaks.peak_rate_if_supported(*dtype).is_some());
        known.filter(|(dtype, _)| args.peak.iter().all(|(given, _)| given != dtype))
    });
    let kept: Vec<&str> = kept.map(|(_, name)| *name).collect();
    if !args.peak.is_empty() && !kept.is_empty() {
        let kept = kept.join(", ");
        crate::terminal::print_note(format_args!("peaks of {kept} are those of {}", old.name()))?;
    }
    match &args.output {
        None => out.write_all(text.as_bytes())?,
        Some(path) => {
            let mut outputs = OutputsAndProtectedInputs::default();
            outputs.register_input(Path::new(&args.from));
            let mut file = outputs.create_file(path)?;
            file.write_all(text.as_bytes())?;
            outputs.close_file_and_queue_for_commit(file)?;
            outputs.commit_all()?;
        }
    }
    Ok(())
}
