//! Finds keys, tokens and hashes in a string.
//!
//! Random text differs from names in its letter frequencies and in how often the character class changes. The score of
//! a string is a sum over its letters, and over the steps between adjacent letters or digits. Each letter or step adds
//! the logarithm of a ratio, its frequency in random text divided by its frequency in names, in quarters of a bit.
//! Names score far below zero, and random text far above. A letter adds `log2((1/26) / frequency)` bits, but at most
//! 13/4. Letter frequencies in names are taken from English. In random text, a step between two letters has one of four
//! combinations of cases, each with probability 1/4. In names, a step has these probabilities: 4/5 from lower case to
//! lower case, 1/16 from lower case to a capital, and 1/8 after a capital.

use super::{LeakKind, PrivateTextPart};

/// Minimum length at which random text can be distinguished from names, in characters.
const SHORTEST: usize = 32;
/// Text with at least this score, in quarters of a bit, counts as random. The threshold is 3.6 standard
/// deviations below the mean score of 40 random characters.
const THRESHOLD: i32 = -20;

/// Scores of the letters `a` to `z`, in quarters of a bit.
const LETTERS: [i32; 26] = [
    -4, 4, -1, -1, -6, 2, 2, 1, -4, 13, 7, -1, 1, -4, -4, 1, 13, -3, -3, -5, 1, 7, 6, 9, 7, 13,
];

/// For each kind of key: its prefix, the characters besides letters and digits that may follow the prefix, and the
/// minimum number of characters after it.
const BEGINNINGS: [(&str, &str, usize); 18] = [
    ("AKIA", "", 16),
    ("ASIA", "", 16),
    ("AIza", "_-", 30),
    ("ghp_", "", 20),
    ("gho_", "", 20),
    ("ghu_", "", 20),
    ("ghs_", "", 20),
    ("ghr_", "", 20),
    ("github_pat_", "_", 20),
    ("glpat-", "_-", 16),
    ("hf_", "", 20),
    ("sk-", "_-", 20),
    ("xoxb-", "-", 10),
    ("xoxp-", "-", 10),
    ("xoxa-", "-", 10),
    ("xoxs-", "-", 10),
    ("eyJ", "_-.", 20),
    ("-----BEGIN", " -", 5),
];

pub(super) fn find_secrets<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let bytes = text.as_bytes();
    for (start, others, least) in BEGINNINGS {
        for (at, _) in text.match_indices(start) {
            let open = at == 0 || !bytes[at - 1].is_ascii_alphanumeric();
            let follows = |b: &&u8| b.is_ascii_alphanumeric() || others.as_bytes().contains(b);
            let length = bytes[at + start.len()..].iter().take_while(follows).count();
            if open && length >= least {
                found.push(PrivateTextPart {
                    kind: LeakKind::Secret,
                    text: &text[at..at + start.len() + length],
                });
            }
        }
    }
    let part = |b: u8| b.is_ascii_alphanumeric() || b"+/_-".contains(&b);
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes[at..].iter().take_while(|&&b| part(b)).count();
        if length >= SHORTEST {
            find_secrets_in_base64_run(&text[at..at + length], found);
        }
        at += length.max(1);
    }
}

/// Searches a run of characters from one of the two base64 alphabets.
fn find_secrets_in_base64_run<'a>(run: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let mut add = |text: &'a str| {
        found.push(PrivateTextPart {
            kind: LeakKind::Secret,
            text,
        });
    };
    let hex = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f' | b'A'..=b'F');
    for word in run.split(|c: char| !c.is_ascii_alphanumeric()) {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        if word.len() >= SHORTEST && word.bytes().all(hex) && digits > 0 && digits < word.len() {
            return add(word);
        }
    }
    // Names that C++ compilers mangle begin with _Z and look random.
    if !run.starts_with("_Z") && looks_random(run) {
        return add(run);
    }
    for word in run.split(['_', '-', '/', '+']) {
        let one_case = word.bytes().all(|b| !b.is_ascii_uppercase())
            || word.bytes().all(|b| !b.is_ascii_lowercase());
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let letters = word.len() - digits;
        if word.len() >= SHORTEST
            && one_case
            && digits >= 3
            && letters >= 8
            && score_randomness(word) > THRESHOLD
        {
            add(word);
        }
    }
}

/// Returns true if a run that mixes upper and lower case looks random.
fn looks_random(run: &str) -> bool {
    let count = |test: fn(&u8) -> bool| run.bytes().filter(test).count();
    let lower = count(u8::is_ascii_lowercase);
    let upper = count(u8::is_ascii_uppercase);
    let joined = count(|b| *b == b'_' || *b == b'-');
    lower >= 3 && upper >= 3 && joined <= run.len() / 8 && score_randomness(run) > THRESHOLD
}

fn score_randomness(run: &str) -> i32 {
    let mut score = 0;
    let mut last = b' ';
    for b in run.bytes() {
        if b.is_ascii_alphabetic() {
            score += LETTERS[usize::from(b.to_ascii_lowercase() - b'a')];
        }
        score += match (last, b) {
            (b'a'..=b'z', b'a'..=b'z') => -7,
            (b'a'..=b'z', b'A'..=b'Z') => 8,
            (b'A'..=b'Z', b'A'..=b'Z' | b'a'..=b'z') => 4,
            (b'0'..=b'9', b'a'..=b'z' | b'A'..=b'Z') => 4,
            (b'a'..=b'z' | b'A'..=b'Z', b'0'..=b'9') => 4,
            (_, b'_' | b'-') => -8,
            _ => 0,
        };
        last = b;
    }
    score
}
