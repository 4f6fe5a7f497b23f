//! `chakram model`: lists the models that come with the program, and shows one with its counts.

use super::output::ReportDestination;
use crate::files::OutputSet;
use crate::model::{LayerRole, ModelDefinition, ModelSource, PRESETS};
use crate::report::csv::quoted;
use crate::report::summary::thousands;
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod json;
mod labels;
mod table;
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
    /// List the models that come with the program
    #[command(after_help = "\
Examples:
  chakram model list
  chakram model list --format csv -o models.csv")]
    List {
        /// How to print them
        #[arg(long, value_enum, default_value_t = ModelListFormat::Text)]
        format: ModelListFormat,
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show a model: its operators, weights, multiplications, and what it keeps for the backward pass
    #[command(after_help = "\
Examples:
  chakram model show gpt2-xl
  chakram model show llama3-8b --tokens 131072
  chakram model show gpt2-xl --toml > my.toml    the start of a model of your own
  chakram model show my.toml --format json")]
    Show(ShowModelArgs),
}

/// Which model to show, and how.
#[derive(Debug, Args)]
struct ShowModelArgs {
    /// A model from the list, or a file (its name has a / in it or ends in .toml)
    name: String,
    /// Tokens of a sample instead of those that the model's file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    tokens: Option<u64>,
    /// Bytes of an element of what is kept for the backward pass
    #[arg(long, value_name = "BYTES", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=8))]
    element_bytes: u64,
    /// How to print it
    #[arg(long, value_enum, default_value_t = ModelShowFormat::Text)]
    format: ModelShowFormat,
    /// Print the model's file as written
    #[arg(long, conflicts_with_all = ["tokens", "element_bytes", "format"])]
    toml: bool,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Format of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelListFormat {
    /// For people
    Text,
    /// For programs
    Json,
    /// For spreadsheets
    Csv,
}

/// Format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelShowFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Does what `args` ask for and prints it to `out`.
///
/// # Errors
///
/// Fails if a model to show does not exist or is refused (a [`crate::model::ModelError`]), or what is written fails.
pub fn run(args: &ModelArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let (text, output) = match &args.action {
        ModelCommand::List { format, output } => (list(*format)?, output),
        ModelCommand::Show(show) => (describe(show)?, &show.output),
    };
    let mut outputs = OutputSet::default();
    if let ModelCommand::Show(show) = &args.action {
        outputs.reads(Path::new(&show.name));
    }
    let path = output.as_deref().unwrap_or(Path::new("-"));
    ReportDestination::claim(out, path, outputs)?.write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list(format: ModelListFormat) -> Result<String, Box<dyn Error>> {
    let mut models = Vec::with_capacity(PRESETS.len());
    for preset in PRESETS {
        models.push(ModelSource::find(preset.name)?.definition(None)?);
    }
    Ok(match format {
        ModelListFormat::Text => list_text(&models),
        ModelListFormat::Json => {
            let models = models.iter().map(json::summary).collect();
            json::document("chakram.models.1", "models", models)
        }
        ModelListFormat::Csv => list_csv(&models),
    })
}

/// Counts the layers of a model that are blocks.
fn blocks(model: &ModelDefinition) -> usize {
    let layers = model.model.layers.iter();
    layers
        .filter(|layer| layer.role == LayerRole::Block)
        .count()
}

fn list_text(models: &[ModelDefinition]) -> String {
    let head = [
        "NAME",
        "KIND",
        "PARAMETERS",
        "BLOCKS",
        "HIDDEN",
        "TOKENS",
        "SOURCE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for found in models {
        let model = &found.model;
        // The authors and the year; all of it is in the model's file.
        let source = model
            .source
            .split_once(", ")
            .map_or("", |(authors, _)| authors);
        let year = model.source.split(['(', ')']).nth(1).unwrap_or_default();
        let dash = || "-".to_owned();
        rows.push([
            model.name.clone(),
            found.kind.name().to_owned(),
            thousands(model.parameters()),
            blocks(found).to_string(),
            found.hidden.map_or_else(dash, |hidden| hidden.to_string()),
            match model.sequence {
                1 => dash(),
                tokens => tokens.to_string(),
            },
            format!("{source}, {year}"),
        ]);
    }
    let [left, right] = [table::ColumnAlignment::Left, table::ColumnAlignment::Right];
    table::render(&rows, [left, left, right, right, right, right, left])
}

fn list_csv(models: &[ModelDefinition]) -> String {
    let mut text = "name,kind,parameters,multiplications,blocks,hidden,tokens,source\n".to_owned();
    for found in models {
        let model = &found.model;
        text += &format!(
            "{},{},{},{},{},{},{},{}\n",
            quoted(&model.name),
            found.kind.name(),
            model.parameters(),
            model.multiplications(),
            blocks(found),
            found
                .hidden
                .map_or(String::new(), |hidden| hidden.to_string()),
            model.sequence,
            quoted(&model.source),
        );
    }
    text
}

fn describe(args: &ShowModelArgs) -> Result<String, Box<dyn Error>> {
    let source = ModelSource::find(&args.name)?;
    let found = source.definition(args.tokens)?;
    Ok(match args.format {
        _ if args.toml => source.text.into_owned(),
        ModelShowFormat::Text => text::render(&found, args.element_bytes),
        ModelShowFormat::Json => {
            let model = json::details(&found, args.element_bytes);
            json::document("chakram.model.1", "model", model)
        }
    })
}

#[cfg(test)]
mod tests;
