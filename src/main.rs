//! `chakram`: replays machine-learning execution traces on hardware you do not have.

fn main() {}
