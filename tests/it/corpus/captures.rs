//! Captures of the corpus that the converter refuses, and why.

/// Ends of their names, with a part of what the refusal says.
const REFUSED: [(&str, &str); 4] = [
    ("t231_ddp_gpt", "Record function id"),
    ("t231_edge_names", "Record function id"),
    ("t231_moe_a2a", "Record function id"),
    // Its collectives name no group, and the worker threads of its groups cannot be told apart.
    ("fsdp_tp_llama", "cannot be told"),
];

/// A part of what the refusal of a capture says; `None` if it is converted.
pub fn refusal(name: &str) -> Option<&'static str> {
    let all = REFUSED.iter();
    let mut fitting = all.filter(|(end, _)| name.ends_with(end));
    fitting.next().map(|(_, reason)| *reason)
}
