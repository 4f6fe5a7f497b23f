//! `chakram model`: lists the built-in models, and shows a model with its parameters, MACs and activations.

use super::output::ReportDestinationAndOutputs;
use crate::terminal::plain_style;
use chakram_report::csv::CsvRows;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_workloads::model::{
    LayerRole, ModelWithDefinitionProperties, PRESETS, PresetOrModelFileText,
};
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use json::{ModelDetails, ModelDocument, ModelListDocument, ModelSummary};

mod json;
mod labels;
mod text;

/// List and show models
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram model list
  chakram model show gpt3-175b
  chakram model show llama3-8b --tokens 131072
  chakram model show gpt2-xl --toml > my.toml
  chakram model show my.toml")]
pub struct ModelArgs {
    #[command(subcommand)]
    action: ModelCommand,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// List the built-in models
    #[command(after_help = "\
Examples:
  chakram model list
  chakram model list --format csv -o models.csv")]
    List {
        /// Format of the list
        #[arg(long, value_enum, default_value_t = ModelListFormat::Text)]
        format: ModelListFormat,
        /// Write to this file; standard output by default
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show a model: operators, parameters, MACs and saved activations
    #[command(after_help = "\
Examples:
  chakram model show gpt2-xl
  chakram model show llama3-8b --tokens 131072
  chakram model show gpt2-xl --toml > my.toml    a template for your own
  chakram model show my.toml --format json")]
    Show(ShowModelArgs),
}

/// Arguments of `model show`.
#[derive(Debug, Args)]
struct ShowModelArgs {
    /// Preset, or a file (a name with a / or ending in .toml; - is standard input)
    name: String,
    /// Tokens per sequence; by default the model's length
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    tokens: Option<u64>,
    /// Bytes per element of saved activations
    #[arg(long, value_name = "BYTES", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=8))]
    element_bytes: u64,
    /// Format of the model
    #[arg(long, value_enum, default_value_t = ModelShowFormat::Text)]
    format: ModelShowFormat,
    /// Print the model's file as written
    #[arg(long, conflicts_with_all = ["tokens", "element_bytes", "format"])]
    toml: bool,
    /// Write to this file; standard output by default
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Output format of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelListFormat {
    /// Human-readable text
    Text,
    /// JSON
    Json,
    /// Comma-separated values
    Csv,
}

/// Output format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelShowFormat {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

/// Prints the list, or the model, to `out`.
///
/// # Errors
///
/// Fails if a model to show does not exist or is invalid (a [`chakram_workloads::model::ModelError`]), or if output
/// cannot be written.
pub fn print_model_list_or_model(
    args: &ModelArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let (text, output) = match &args.action {
        ModelCommand::List { format, output } => (list_models(*format)?, output),
        ModelCommand::Show(show) => (render_model_in_format(show)?, &show.output),
    };
    let mut outputs = OutputsAndProtectedInputs::default();
    if let ModelCommand::Show(show) = &args.action {
        outputs.register_input(Path::new(&show.name));
    }
    let path = output.as_deref().unwrap_or(Path::new("-"));
    ReportDestinationAndOutputs::create_at_path(out, path, outputs)?.write_report(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list_models(format: ModelListFormat) -> Result<String, Box<dyn Error>> {
    let mut models = Vec::with_capacity(PRESETS.len());
    for preset in PRESETS {
        models.push(PresetOrModelFileText::find_source(preset.name)?.parse_definition(None)?);
    }
    Ok(match format {
        ModelListFormat::Text => render_model_list_text(&models),
        ModelListFormat::Json => {
            let models = models.iter().map(ModelSummary::of_definition).collect();
            VersionedDocument::new("chakram.models.1", ModelListDocument { models }).to_json_text()
        }
        ModelListFormat::Csv => render_model_list_csv(&models),
    })
}

/// Returns the number of layers that are transformer blocks.
fn transformer_block_count(model: &ModelWithDefinitionProperties) -> usize {
    let layers = model.model.layers.iter();
    layers
        .filter(|layer| layer.role == LayerRole::Block)
        .count()
}

fn render_model_list_text(models: &[ModelWithDefinitionProperties]) -> String {
    let mut table = TextTable::new([
        left_aligned_column("NAME", 0),
        left_aligned_column("KIND", 0),
        right_aligned_column("PARAMETERS", 0),
        right_aligned_column("BLOCKS", 0),
        right_aligned_column("HIDDEN", 0),
        right_aligned_column("TOKENS", 0),
        left_aligned_column("SOURCE", 0),
    ])
    .with_indent(0);
    for found in models {
        let model = &found.model;
        // Show only the authors and the year, because the model file has the full citation.
        let source = model
            .source
            .split_once(", ")
            .map_or("", |(authors, _)| authors);
        let year = model.source.split(['(', ')']).nth(1).unwrap_or_default();
        let dash = || "-".to_owned();
        let tokens = match model.sequence {
            1 => dash(),
            tokens => tokens.to_string(),
        };
        table.add_row(&[
            &model.name,
            &found.kind.kind_name(),
            &format_thousands(model.parameter_count()),
            &transformer_block_count(found),
            &found.hidden.map_or_else(dash, |hidden| hidden.to_string()),
            &tokens,
            &format_args!("{source}, {year}"),
        ]);
    }
    table.to_text(plain_style())
}

fn render_model_list_csv(models: &[ModelWithDefinitionProperties]) -> String {
    let mut rows = CsvRows::new("name,kind,parameters,macs,blocks,hidden,tokens,source");
    for found in models {
        let model = &found.model;
        let hidden = found.hidden.map(|hidden| hidden.to_string());
        rows.add_row(&[
            &model.name,
            &found.kind.kind_name(),
            &model.parameter_count(),
            &model.multiplication_count(),
            &transformer_block_count(found),
            &hidden.unwrap_or_default(),
            &model.sequence,
            &model.source,
        ]);
    }
    rows.into_text()
}

fn render_model_in_format(args: &ShowModelArgs) -> Result<String, Box<dyn Error>> {
    let source = PresetOrModelFileText::find_source(&args.name)?;
    let found = source.parse_definition(args.tokens)?;
    Ok(match args.format {
        _ if args.toml => source.text.into_owned(),
        ModelShowFormat::Text => text::render_text(&found, args.element_bytes),
        ModelShowFormat::Json => {
            let model = ModelDetails::of_definition(&found, args.element_bytes);
            VersionedDocument::new("chakram.model.1", ModelDocument { model }).to_json_text()
        }
    })
}

#[cfg(test)]
mod tests;
