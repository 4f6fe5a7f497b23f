//! Tests studies of PALM, the paper on tiles: the claims of its tables and figures, with our
//! results.

mod inference;
mod mappings;
mod mechanisms;
mod rates;
mod virtual_tiles;
mod volumes;

use crate::files::Folder;
use serde_json::Value;

/// A model under a plan, in 16 bits unless `more` says otherwise.
#[derive(Clone, Copy)]
struct StudiedModelAndPlan<'a> {
    model: &'a str,
    tensor: u32,
    data: u32,
    pipeline: u32,
    /// The number of samples of one replica's micro-batch; the next field is the number of samples
    /// of a step.
    micro_batch: u32,
    batch: u32,
    more: &'a [&'a str],
}

impl StudiedModelAndPlan<'_> {
    /// Returns the plan's report; with `--dry-run` in `more`, returns the results that need no replay.
    fn report(&self, folder: &Folder) -> Value {
        let numbers = [
            ("--tensor", self.tensor),
            ("--data", self.data),
            ("--pipeline", self.pipeline),
            ("--micro-batch", self.micro_batch),
            ("--batch", self.batch),
        ];
        let mut words = ["generate", self.model, "--format", "json"]
            .map(str::to_owned)
            .to_vec();
        for (option, number) in numbers {
            words.extend([option.to_owned(), number.to_string()]);
        }
        if !self.more.contains(&"--dtype") {
            words.extend(["--dtype", "fp16"].map(str::to_owned));
        }
        words.extend(self.more.iter().map(|word| (*word).to_owned()));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        serde_json::from_str(&folder.run_successfully_for_stdout(&words)).expect("it is JSON")
    }

    /// Returns how many samples per second a step processes.
    fn samples_per_second(&self, folder: &Folder) -> f64 {
        f64::from(self.batch) / read_makespan_seconds(&self.report(folder))
    }
}

fn read_makespan_seconds(report: &Value) -> f64 {
    let makespan = &report["makespan_ps"];
    let makespan = makespan.as_f64().unwrap_or_else(|| panic!("{report}"));
    makespan / 1e12
}

/// For a layer of T-145B, the number of samples, of tokens, and of numbers per token. The paper has micro-batches of
/// 115 samples. Here they have 112, because a replica's samples must be a whole number.
const LAYER: [f64; 3] = [112.0, 2048.0, 12288.0];

/// Writes models with one and with two layers of T-145B, whose difference is one layer.
fn write_one_and_two_layer_models(folder: &Folder) {
    for (file, layers) in [("one.toml", 1), ("two.toml", 2)] {
        let model = format!(
            "name = \"t\"\nsource = \"none\"\npositions = \"learned\"\nactivation = \"gelu\"\nnorm = \"layernorm\"\n\
             biases = true\ncausal = true\nhead = \"logits\"\ntied = false\nkind = \"transformer\"\nlayers = {layers}\n\
             hidden = 12288\nheads = 96\nvocabulary = 51200\nsequence = 2048\n"
        );
        folder.write(file, model.as_bytes());
    }
}

/// Returns a plan of 16 cores for the models of [`write_one_and_two_layer_models`].
fn build_plan_on_16_cores<'a>(
    model: &'a str,
    tensor: u32,
    more: &'a [&'a str],
) -> StudiedModelAndPlan<'a> {
    StudiedModelAndPlan {
        model,
        tensor,
        data: 16 / tensor,
        pipeline: 1,
        micro_batch: 112 * tensor / 16,
        batch: 112,
        more,
    }
}
