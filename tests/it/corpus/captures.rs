//! Captures of the corpus that the converter rejects, with the errors.

/// Endings of the captures' names, each with a part of the expected error.
const REFUSED: [(&str, &str); 1] = [
    // The two files are from different processes.
    ("resnet_pair", "of process"),
];

/// Returns a part of the error for a rejected capture; `None` if the capture converts.
pub fn find_expected_refusal(name: &str) -> Option<&'static str> {
    let all = REFUSED.iter();
    let mut fitting = all.filter(|(end, _)| name.ends_with(end));
    fitting.next().map(|(_, reason)| *reason)
}
