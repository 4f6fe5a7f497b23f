//! Names of trace files, which have the form `{prefix}.{rank}.et` or another ending.

/// Endings of trace files after `{prefix}.{rank}`, in order of precedence. If a job has files with several endings, the
/// files with the first ending are its traces. A `.json` file may have any content, so it counts only if it begins like
/// a trace.
pub(super) const ENDINGS: [&str; 4] = [".et", ".eg", ".jsonl", ".json"];
pub(super) const ANYTHING: &str = ".json";
/// Suffixes of compressed files, which may follow an ending.
pub(super) const PACKED: [&str; 3] = ["", ".gz", ".zst"];

/// Splits a file name `{prefix}.{rank}.et` into prefix, rank and the index of its ending.
pub(super) fn split_file_name(name: &str) -> Option<(&str, u32, usize)> {
    let name = PACKED[1..]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    let mut endings = (0..).zip(ENDINGS);
    let (ending, stem) =
        endings.find_map(|(place, ending)| Some((place, name.strip_suffix(ending)?)))?;
    let (prefix, rank) = stem.rsplit_once('.')?;
    let plain = !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| rank.parse().ok().map(|rank| (prefix, rank, ending)))?
}

/// Returns the rank in a file name `{prefix}.{rank}.et`, with any ending.
pub fn parse_file_rank(name: &str) -> Option<u32> {
    split_file_name(name).map(|(_, rank, _)| rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_into_prefix_and_rank() {
        assert_eq!(split_file_name("a.b.12.et"), Some(("a.b", 12, 0)));
        assert_eq!(split_file_name("a.0.et.zst"), Some(("a", 0, 0)));
        assert_eq!(split_file_name("a.0.jsonl.gz"), Some(("a", 0, 2)));
        assert_eq!(split_file_name("a.1.json"), Some(("a", 1, 3)));
        for bad in [
            "a.et",
            "a.+1.et",
            "a.x.et",
            "a.1.json.xz",
            "a..et",
            "a.99999999999.et",
        ] {
            assert_eq!(split_file_name(bad), None, "{bad}");
        }
    }
}
