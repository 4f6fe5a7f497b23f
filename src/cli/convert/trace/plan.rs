//! Plan of a conversion: the output file of each trace.

use super::OutputTraceFormArg;
use chakram_trace::files::join_prefix_middle_and_ending;
use chakram_trace::format::file::{
    FoundTraces, RankFile, TraceFinder, TraceHashVerificationLevel, parse_file_rank,
};
use chakram_trace::format::job;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Trace format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputTraceForm {
    Et,
    JsonLines,
}

/// The conversion of one trace.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConvertTask {
    /// Input file; `None` for standard input.
    pub input: Option<RankFile>,
    /// Output file; `None` for standard output.
    pub output: Option<PathBuf>,
    pub to: OutputTraceForm,
    /// Compression: `gz`, `zst` or empty.
    pub packed: &'static str,
}

/// All conversions of one command.
#[derive(Debug)]
pub(super) struct ConvertPlan {
    pub jobs: Vec<ConvertTask>,
    /// Inputs that are traces of a job.
    pub found: FoundTraces,
    /// Prefix of the job's files, if the output is a job instead of a single file.
    pub prefix: Option<PathBuf>,
}

/// Endings of file names, each with its format and compression.
const ENDINGS: [(&str, OutputTraceForm, &str); 6] = [
    (".et", OutputTraceForm::Et, ""),
    (".et.gz", OutputTraceForm::Et, "gz"),
    (".et.zst", OutputTraceForm::Et, "zst"),
    (".jsonl", OutputTraceForm::JsonLines, ""),
    (".jsonl.gz", OutputTraceForm::JsonLines, "gz"),
    (".jsonl.zst", OutputTraceForm::JsonLines, "zst"),
];

/// Parts of an output name: format, compression, name without the ending, and ending.
struct OutputFormatAndCompressionFromName<'o> {
    to: OutputTraceForm,
    packed: &'static str,
    stem: &'o str,
    ending: &'static str,
}

/// Chooses the output file of each trace of `inputs`.
pub(super) fn plan_outputs(
    inputs: &[PathBuf],
    output: &Path,
    to: Option<OutputTraceFormArg>,
    verify: TraceHashVerificationLevel,
) -> Result<ConvertPlan, Box<dyn Error>> {
    // If the name ends with a separator, the output is a folder, even if it does not exist yet.
    let folder = output.is_dir() || output.to_string_lossy().ends_with('/');
    let name = if folder {
        output.join("job")
    } else {
        output.to_owned()
    };
    let name = name.to_string_lossy().into_owned();
    let known = parse_output_name_and_format(&name, to)?;
    let mut sources = Vec::new();
    let mut several = folder || inputs.len() > 1;
    let mut finder = TraceFinder::new(verify);
    for input in inputs {
        let name = input.file_name().and_then(|name| name.to_str());
        // A file whose name contains a rank is part of a job; any other file is a single trace.
        let is_job = name.is_some_and(|name| name.ends_with(job::ENDING));
        if input.as_os_str() == "-" {
            sources.push((None, None));
        } else if input.is_file() && !is_job && name.and_then(parse_file_rank).is_none() {
            sources.push((Some(RankFile::new(0, input.clone())), None));
        } else {
            several |= is_job || !input.is_file();
            finder.add_path(input)?;
        }
    }
    let found = finder.finish_search();
    let ranked = found.files.iter().cloned();
    sources.extend(ranked.map(|file| (Some(file.clone()), Some(file.rank))));
    sources.dedup();
    if !several {
        let (input, _) = sources.remove(0);
        let jobs = vec![ConvertTask {
            input,
            output: (output.as_os_str() != "-").then(|| output.to_owned()),
            to: known.to,
            packed: known.packed,
        }];
        return Ok(ConvertPlan {
            jobs,
            found,
            prefix: None,
        });
    }
    if output.as_os_str() == "-" {
        return Err(
            "standard output can take only one trace, but there are several\n  try: one file"
                .into(),
        );
    }
    let mut ranks: BTreeMap<u32, RankFile> = BTreeMap::new();
    for (file, rank) in sources {
        let Some(file) = file else {
            return Err("standard input has no rank\n  try: standard input by itself".into());
        };
        let Some(rank) = rank else {
            return Err(format!(
                "{}: the name does not state the rank\n  try: names PREFIX.RANK.et, or one file at a time",
                file.path.display()
            )
            .into());
        };
        if let Some(other) = ranks.insert(rank, file.clone()) {
            return Err(format!(
                "rank {rank} has two files, {} and {}",
                other.path.display(),
                file.path.display()
            )
            .into());
        }
    }
    let prefix = PathBuf::from(known.stem);
    let job = |(rank, file)| ConvertTask {
        input: Some(file),
        output: Some(join_prefix_middle_and_ending(&prefix, rank, known.ending)),
        to: known.to,
        packed: known.packed,
    };
    Ok(ConvertPlan {
        jobs: ranks.into_iter().map(job).collect(),
        found,
        prefix: Some(prefix),
    })
}

/// Fails if the format `to` contradicts the ending of the name, or if there is neither a format nor an ending.
fn parse_output_name_and_format(
    name: &str,
    to: Option<OutputTraceFormArg>,
) -> Result<OutputFormatAndCompressionFromName<'_>, String> {
    let to = to.map(|to| match to {
        OutputTraceFormArg::Et => OutputTraceForm::Et,
        OutputTraceFormArg::Jsonl => OutputTraceForm::JsonLines,
    });
    let found = ENDINGS.iter().find_map(|(ending, form, packed)| {
        Some((name.strip_suffix(ending)?, *ending, *form, *packed))
    });
    match (found, to) {
        (Some((.., form, _)), Some(to)) if form != to => Err(format!(
            "--to contradicts the ending of {name}\n  try: one of the two"
        )),
        (Some((stem, ending, to, packed)), _) => Ok(OutputFormatAndCompressionFromName {
            to,
            packed,
            stem,
            ending,
        }),
        (None, Some(to)) => {
            let packed = ["gz", "zst"]
                .into_iter()
                .find(|end| name.ends_with(&format!(".{end}")))
                .unwrap_or("");
            let plain = |(_, form, packed): &&(&str, OutputTraceForm, &str)| {
                *form == to && packed.is_empty()
            };
            let (ending, ..) = ENDINGS.iter().find(plain).expect("every form has one");
            Ok(OutputFormatAndCompressionFromName {
                to,
                packed,
                stem: name,
                ending,
            })
        }
        (None, None) => Err(format!(
            "{name}: the output format is unknown\n  try: a name that ends with .et or .jsonl (and .gz or .zst), or --to"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_named_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a.0.et", "a.1.et.zst", "other.json"] {
            std::fs::write(at(name), b"").unwrap();
        }
        let named = |inputs: &[PathBuf], output: &str, to| {
            let plan = plan_outputs(inputs, &at(output), to, TraceHashVerificationLevel::Lengths);
            let jobs = plan.map_err(|e| e.to_string())?.jobs;
            let name = |job: ConvertTask| {
                let output = job.output.unwrap();
                let name = output.strip_prefix(folder.path()).unwrap();
                (name.to_string_lossy().into_owned(), job.to, job.packed)
            };
            Ok::<_, String>(jobs.into_iter().map(name).collect::<Vec<_>>())
        };
        let out = |name: &str, to, packed| (name.to_owned(), to, packed);
        let (et, lines) = (OutputTraceForm::Et, OutputTraceForm::JsonLines);
        // For a single input, the output is a single file with exactly this name.
        let one = [at("other.json")];
        assert_eq!(named(&one, "x.et", None).unwrap(), [out("x.et", et, "")]);
        let to = Some(OutputTraceFormArg::Jsonl);
        assert_eq!(named(&one, "x.gz", to).unwrap(), [out("x.gz", lines, "gz")]);
        // If the output is a prefix or a folder, it gets one file per trace.
        for job in [at("a"), folder.path().to_owned()] {
            assert_eq!(
                named(&[job], "new/b.jsonl.zst", None).unwrap(),
                [
                    out("new/b.0.jsonl.zst", lines, "zst"),
                    out("new/b.1.jsonl.zst", lines, "zst")
                ]
            );
        }
        assert_eq!(
            named(&[at("a.1.et.zst")], "new/", Some(OutputTraceFormArg::Et)).unwrap(),
            [out("new/job.1.et", et, "")]
        );
        for (inputs, output, to, part) in [
            (&[at("a")][..], "x", None, "the output format is unknown"),
            (
                &[at("a")],
                "x.et",
                Some(OutputTraceFormArg::Jsonl),
                "contradicts",
            ),
            (
                &[at("a"), at("other.json")],
                "x.et",
                None,
                "does not state the rank",
            ),
            (&[at("nothing")], "x.et", None, "no such file or folder"),
        ] {
            let error = named(inputs, output, to).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let piped = plan_outputs(
            &[at("a")],
            Path::new("-"),
            Some(OutputTraceFormArg::Et),
            TraceHashVerificationLevel::Lengths,
        )
        .unwrap_err();
        assert!(piped.to_string().contains("only one trace"), "{piped}");
    }
}
