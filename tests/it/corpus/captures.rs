//! Captures of the corpus that the converter refuses, and why.

/// Ends of their names, with a part of what the refusal says.
const REFUSED: [(&str, &str); 1] = [
    // Two files of different processes.
    ("resnet_pair", "of process"),
];

/// A part of what the refusal of a capture says; `None` if it is converted.
pub fn refusal(name: &str) -> Option<&'static str> {
    let all = REFUSED.iter();
    let mut fitting = all.filter(|(end, _)| name.ends_with(end));
    fitting.next().map(|(_, reason)| *reason)
}
