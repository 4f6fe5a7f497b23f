//! Plan files: one key per field of a plan, and one table `[[stage]]` per stage with explicit layers or
//! ranks.

use super::{
    AllRankCoordinatesAndGroups, OPTIONS, OperatorPatternDegrees, ParallelismPlan, PlanDraft,
    TensorDataStageCoordinates,
};
use crate::generate::sharding::OperatorAxisShardCounts;
use chakram_base::config::{
    ConfigDocument, ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message,
};

const MOST: u32 = i32::MAX as u32;

impl ParallelismPlan {
    /// Returns the keys of the options that a plan file sets.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML.
    pub fn stated_option_keys(text: &str, file: &str) -> Result<Vec<&'static str>, ConfigError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.unchecked_root();
        let keys = OPTIONS.iter().map(|option| option.key);
        Ok(keys.filter(|key| root.get(key).is_some()).collect())
    }

    /// Parses the text of a plan file; error messages call the file `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML, or has an unknown key or an invalid value.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let document = ConfigDocument::parse(text, file)?;
        let keys: Vec<_> = OPTIONS.iter().map(|option| option.key).collect();
        let root = document.root_table_with_allowed_keys(&keys)?;
        let mut draft = PlanDraft::new(Self::new());
        for option in OPTIONS {
            if let Some(field) = root.get(option.key) {
                option.set_option_from_field(&mut draft, &field)?;
            }
        }
        let (name, chunks) = (draft.schedule_name(), draft.chunks);
        let finished = draft.finish_plan();
        let mut plan = finished.map_err(|_| match (root.get("chunks"), chunks) {
            (Some(field), Some(chunks)) => {
                field.invalid_value_error(chunks, format!("no such key with schedule = \"{name}\""))
            }
            _ => root.missing_entry_error(
                "chunks",
                "a number, 2 or more, with schedule = \"interleaved\"",
            ),
        })?;
        let others = ["order", "ranks"].iter().find_map(|key| root.get(key));
        if let (Some(_), Some(other)) = (root.get("place"), others) {
            return Err(other.invalid_value_error(
                "both this key and `place`",
                "one of the two, because both set the order of ranks",
            ));
        }
        let others = ["schedule", "chunks"].iter();
        let other = others.filter_map(|key| root.get(key)).next();
        if let (Some(_), Some(other)) = (root.get("pass_orders"), other) {
            return Err(other.invalid_value_error(
                "both this key and `pass_orders`",
                "one of the two, because both set the order of passes",
            ));
        }
        parse_stages(&root, &mut plan)?;
        plan.operators = parse_operator_degrees(&root)?;
        Ok(plan)
    }
}

fn parse_ranks(field: &ConfigField<'_>) -> Result<Vec<u32>, ConfigError> {
    let items = field.read_array_items("a list of ranks")?;
    let ranks = items
        .iter()
        .map(|rank| rank.read_integer_between(0, MOST.into()));
    ranks.map(|rank| rank.map(|rank| rank as u32)).collect()
}

/// Parses `[[operator]]`, which has a name pattern and the degrees other than 1.
fn parse_operator_degrees(
    root: &ConfigTable<'_>,
) -> Result<Vec<OperatorPatternDegrees>, ConfigError> {
    let Some(field) = root.get("operator") else {
        return Ok(Vec::new());
    };
    let tables = field.read_tables(&["name", "b", "m", "n", "k"])?;
    let one = |table: &ConfigTable<'_>| {
        let expected = "an operator's name, such as \"mlp.up\" or \"stage2.0/conv*\"";
        let name = table
            .require_field("name", expected)?
            .read_one_line_text()?
            .to_owned();
        let degree = |key| table.read_or_default(key, 1, |field| field.read_count(MOST));
        let degrees = OperatorAxisShardCounts {
            b: degree("b")?,
            m: degree("m")?,
            n: degree("n")?,
            k: degree("k")?,
        };
        Ok(OperatorPatternDegrees { name, degrees })
    };
    tables.iter().map(one).collect()
}

/// Parses `[[stage]]`, which states the layers of each chunk, and the ranks in order of replicas.
fn parse_stages(root: &ConfigTable<'_>, plan: &mut ParallelismPlan) -> Result<(), ConfigError> {
    let Some(field) = root.get("stage") else {
        return Ok(());
    };
    let tables = field.read_tables(&["layers", "ranks"])?;
    let wrong = |found: usize, expected: String| Err(field.invalid_value_error(found, expected));
    if tables.len() as u64 != u64::from(plan.pipeline) {
        return wrong(
            tables.len(),
            format!("{} stages, the value of `pipeline`", plan.pipeline),
        );
    }
    let chunks = plan.schedule.chunk_count() as usize;
    let mut all = Vec::new();
    let mut own = Vec::new();
    for table in &tables {
        let layers = table.require_field("layers", "the stage's layers, for example \"0-11\"")?;
        let ranges = match layers.read_array_items("") {
            Ok(items) => items
                .iter()
                .map(parse_layer_range)
                .collect::<Result<Vec<_>, _>>()?,
            Err(_) => vec![parse_layer_range(&layers)?],
        };
        if ranges.len() != chunks {
            let expected = format!("{chunks} ranges of layers, one for each chunk");
            return Err(layers.invalid_value_error(ranges.len(), expected));
        }
        all.push(ranges);
        if let Some(field) = table.get("ranks") {
            own.push(parse_ranks(&field)?);
        }
    }
    let of_chunk = |chunk| all.iter().map(move |ranges| ranges[chunk]);
    plan.stages = (0..chunks).flat_map(of_chunk).collect();
    let each = u64::from(plan.tensor) * u64::from(plan.weight_replicas_per_stage());
    let complete = |own: &Vec<Vec<u32>>| own.iter().all(|ranks| ranks.len() as u64 == each);
    if own.is_empty() {
        return Ok(());
    }
    if own.len() != tables.len() || !complete(&own) || !plan.ranks.is_empty() {
        let expected = format!(
            "`ranks` in all stages or in none, {each} in each stage, and no other `ranks` key"
        );
        return wrong(own.len(), expected);
    }
    let mut at = vec![0; own.len() * each as usize];
    let positions = AllRankCoordinatesAndGroups::new(plan);
    for (stage, ranks) in own.iter().enumerate() {
        for (i, rank) in ranks.iter().enumerate() {
            let place = TensorDataStageCoordinates {
                tensor: i as u32 % plan.tensor,
                data: i as u32 / plan.tensor,
                stage: stage as u32,
            };
            at[positions.rank_at(place) as usize] = *rank;
        }
    }
    plan.ranks = at;
    Ok(())
}

/// Parses a range of layers, given as its first and last layer, such as `"4-7"`.
fn parse_layer_range(field: &ConfigField<'_>) -> Result<[u32; 2], ConfigError> {
    let expected = "the first and the last layer, counted from 0, for example \"0-11\"";
    let text = field.read_text(expected)?;
    let ends = text.split_once('-').unwrap_or((text, text));
    match (ends.0.trim().parse(), ends.1.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok([first, last]),
        _ => Err(field.invalid_value_error(quote_and_truncate_for_message(text), expected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::plan::{
        AblationEffect, BucketPolicy, ParallelAxis, RecomputePolicy, ZeroStage,
    };
    use crate::generate::schedule::PipelineSchedule;

    #[test]
    fn plan_file_is_parsed_to_the_plan_it_states() {
        let text = r#"
data = 2
tensor = 4
pipeline = 2
sequence_parallel = true
zero = 1
order = ["tp", "pp", "dp"]
batch = 16
schedule = "interleaved"
chunks = 2
recompute = "full"
buckets = "parameters"
bucket = "25 MB"
first_bucket = "1 MiB"
capacity = "80 GB"
without = ["bubble", "logits"]

[[stage]]
layers = ["0-2", "6-8"]

[[stage]]
layers = ["3-5", "9-13"]
"#;
        let plan = ParallelismPlan::parse(text, "plan.toml").unwrap();
        let mut expected = ParallelismPlan::new();
        expected.data = 2;
        expected.tensor = 4;
        expected.pipeline = 2;
        expected.sequence_parallel = true;
        expected.zero = ZeroStage::Optimizer;
        expected.order = [
            ParallelAxis::Tensor,
            ParallelAxis::Pipeline,
            ParallelAxis::Data,
        ];
        expected.batch = 16;
        expected.schedule = PipelineSchedule::Interleaved { chunks: 2 };
        expected.recompute = RecomputePolicy::Full;
        expected.buckets = BucketPolicy::Parameters;
        expected.bucket = 25_000_000;
        expected.first_bucket = Some(1_048_576);
        expected.capacity = Some(80_000_000_000);
        expected.without.add_effect(AblationEffect::Bubble);
        expected.without.add_effect(AblationEffect::Logits);
        expected.stages = vec![[0, 2], [3, 5], [6, 8], [9, 13]];
        assert_eq!(plan, expected);
    }

    #[test]
    fn ranks_of_stages_are_a_placement() {
        let text = "tensor = 2\npipeline = 2\n[[stage]]\nlayers = \"0-1\"\nranks = [3, 1]\n\
                    [[stage]]\nlayers = \"2-3\"\nranks = [0, 2]\n";
        let plan = ParallelismPlan::parse(text, "plan.toml").unwrap();
        let placement = AllRankCoordinatesAndGroups::new(&plan);
        let rank = |tensor, stage| {
            placement.rank_at(TensorDataStageCoordinates {
                tensor,
                data: 0,
                stage,
            })
        };
        assert_eq!(
            [rank(0, 0), rank(1, 0), rank(0, 1), rank(1, 1)],
            [3, 1, 0, 2]
        );
    }

    #[test]
    fn errors_name_key_and_line() {
        for (text, expected) in [
            (
                "data = 2\ntensr = 4",
                "p.toml:2: key `tensr`: found an unknown key, expected one of data, tensor",
            ),
            ("tensr = 4", "without; did you mean `tensor`?"),
            (
                "zero = 4",
                "p.toml:1: key `zero`: found the number 4, expected a whole number from 0 to 3",
            ),
            (
                "schedule = \"1f2b\"",
                "p.toml:1: key `schedule`: found \"1f2b\", expected one of gpipe, 1f1b, interleaved, interleaved-pairs, layer-wise, \
                 inference, zb-h1, zb-v, dualpipe, dualpipe-v; did you mean `1f1b`?",
            ),
            (
                "\nchunks = 2",
                "p.toml:2: key `chunks`: found 2, expected no such key with schedule",
            ),
            (
                "schedule = \"interleaved\"",
                "key `chunks`: found nothing, expected a number",
            ),
            ("order = [\"tp\", \"dp\"]", "key `order`: found 2 axes"),
            (
                "tensor = 2\npipeline = 1\norder = [\"tp\", \"tp\", \"pp\"]\n\
                 [[stage]]\nlayers = \"0\"\nranks = [0, 1]",
                "p.toml:3: key `order`: found no dp",
            ),
            (
                "schedule = \"interleaved\"\nchunks = 2147483647\n[[stage]]\nlayers = \"0-6\"",
                "found 1, expected 2147483647",
            ),
            ("without = [\"noise\"]", "key `without[0]`: found \"noise\""),
            (
                "[[stage]]\nlayers = \"5-2\"",
                "key `stage[0].layers`: found \"5-2\"",
            ),
            ("bucket = 40", "key `bucket`: found"),
            (
                "place = [\"tp@0\", \"ep@1\"]",
                "key `place[1]`: found \"ep@1\", expected AXIS@DIMENSION",
            ),
            (
                "place = [\"tp@0\"]\norder = [\"tp\", \"pp\", \"dp\"]",
                "p.toml:2: key `order`: found both this key and `place`, expected one of the two",
            ),
        ] {
            let error = ParallelismPlan::parse(text, "p.toml")
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}
