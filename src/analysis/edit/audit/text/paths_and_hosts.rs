//! Finds paths and host names in text.

use super::{LeakKind, PrivateTextPart, byte_before, is_word_byte};

/// First components of absolute paths. One of them at the beginning of a string is enough to recognise a path.
const ROOTS: [&str; 18] = [
    "home",
    "Users",
    "tmp",
    "root",
    "usr",
    "var",
    "opt",
    "etc",
    "mnt",
    "data",
    "workspace",
    "scratch",
    "nfs",
    "lustre",
    "proc",
    "dev",
    "srv",
    "shared",
];

/// File extensions of source and data files.
const ENDINGS: [&str; 24] = [
    "py",
    "pyc",
    "ipynb",
    "sh",
    "cu",
    "cuh",
    "cpp",
    "cc",
    "hpp",
    "so",
    "pt",
    "pth",
    "ckpt",
    "safetensors",
    "json",
    "yaml",
    "yml",
    "toml",
    "pkl",
    "csv",
    "txt",
    "npy",
    "parquet",
    "onnx",
];

fn is_path_part(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._+@~%#-".contains(&b) || b >= 0x80;
    !part.is_empty() && part.bytes().all(plain)
}

pub(super) fn find_paths<'a>(token: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let mut add = |kind, text: &'a str| found.push(PrivateTextPart { kind, text });
    let lettered = |part: &&str| part.bytes().any(|b| b.is_ascii_alphabetic() || b >= 0x80);
    for (at, c) in token.char_indices() {
        let starts = byte_before(token, at).is_none_or(|b| b":@!".contains(&b));
        if !starts || !matches!(c, '/' | '~' | '.') {
            continue;
        }
        let rest = &token[at..];
        let mut parts = rest.split('/');
        let first = parts.next().unwrap_or("");
        let parts: Vec<&str> = parts.take_while(|part| is_path_part(part)).collect();
        let [one, two] = [0, 1].map(|i| parts.get(i).copied().unwrap_or(""));
        let known = match first {
            "" => ROOTS.contains(&one) || lettered(&one) && lettered(&two),
            "." | ".." => lettered(&one),
            _ => first.starts_with('~') && is_path_part(first) && !parts.is_empty(),
        };
        // Skip the slashes of `://`: they are part of a URL and do not begin a path.
        if known && !(first.is_empty() && one.is_empty()) {
            let length = parts.iter().map(|part| part.len() + 1).sum::<usize>();
            add(LeakKind::Path, &rest[..first.len() + length]);
            if first.len() > 1 && first.starts_with('~') {
                add(LeakKind::User, &first[1..]);
            }
            if matches!(one, "home" | "Users") && !two.is_empty() {
                add(LeakKind::User, two);
            }
            return;
        }
    }
    let bytes = token.as_bytes();
    // A drive letter is not part of a longer word, so no letter may precede it.
    let drive = token.find(":\\").filter(|&at| {
        at > 0 && bytes[at - 1].is_ascii_alphabetic() && (at == 1 || !is_word_byte(bytes[at - 2]))
    });
    if let Some(at) = drive {
        add(LeakKind::Path, &token[at - 1..]);
        let mut parts = token[at + 2..].split('\\').filter(|part| !part.is_empty());
        if let (Some("Users"), Some(user)) = (parts.next(), parts.next()) {
            add(LeakKind::User, user);
        }
        return;
    }
    if let Some(at) = token
        .find("\\\\")
        .filter(|&at| token[at + 2..].contains('\\'))
    {
        return add(LeakKind::Path, &token[at..]);
    }
    let file = token.split(':').next().unwrap_or(token);
    if let Some((stem, ending)) = file.rsplit_once('.')
        && ENDINGS.contains(&ending)
        && lettered(&stem)
        && stem.split('/').all(is_path_part)
    {
        add(LeakKind::Path, file);
    }
}

/// Top-level domains of host names. No dotted name in a program ends in one of them.
const DOMAINS: [&str; 9] = [
    "com",
    "org",
    "edu",
    "gov",
    "mil",
    "internal",
    "lan",
    "corp",
    "localdomain",
];

/// Top-level domains that may also end a dotted name in a program. A name that ends in one of them is a host name only
/// if it has three labels and a digit or hyphen.
const SHORT_DOMAINS: [&str; 18] = [
    "net", "io", "ai", "dev", "cloud", "local", "home", "cluster", "de", "uk", "fr", "ch", "nl",
    "eu", "jp", "cn", "ru", "us",
];

/// Words in machine names that precede a number.
const MACHINES: [&str; 17] = [
    "node", "host", "worker", "gpu", "dgx", "hgx", "srv", "server", "compute", "rack", "login",
    "head", "pod", "hpc", "blade", "vm", "instance",
];

pub(super) fn find_hosts<'a>(token: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let mut add = |text: &'a str| {
        found.push(PrivateTextPart {
            kind: LeakKind::Host,
            text,
        });
    };
    if let Some(at) = token.find("://") {
        let scheme = token.as_bytes()[..at].iter().rev();
        let scheme = scheme.take_while(|b| b.is_ascii_alphanumeric()).count();
        if scheme > 0 && at + 3 < token.len() {
            return add(&token[at - scheme..]);
        }
    }
    for name in token.split(['/', ':', '@', '\\']) {
        let labels: Vec<&str> = name.split('.').collect();
        let sound = |label: &&str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            !label.is_empty() && label.bytes().all(plain)
        };
        if !labels.iter().all(sound) {
            continue;
        }
        let last = labels[labels.len() - 1];
        let odd = name.bytes().any(|b| b.is_ascii_digit() || b == b'-');
        let under = labels.len() >= 2 && DOMAINS.contains(&last)
            || labels.len() >= 3 && odd && SHORT_DOMAINS.contains(&last);
        if under || is_machine_name(labels[0]) {
            add(name);
        }
    }
}

/// Returns true if `label` looks like a machine's name, such as `gpu-node-07`, `dgx-12` or `ip-10-0-3-4`.
fn is_machine_name(label: &str) -> bool {
    let parts: Vec<&str> = label.split('-').collect();
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if parts.len() == 5 && parts[0] == "ip" {
        return parts[1..].iter().all(number);
    }
    let last = parts[parts.len() - 1];
    let long = parts.len() >= 3 || parts.len() == 2 && last.len() >= 2;
    let word = |part: &&str| {
        let word = part.trim_end_matches(|c: char| c.is_ascii_digit());
        MACHINES
            .iter()
            .any(|known| known.eq_ignore_ascii_case(word))
    };
    long && number(&last) && parts[..parts.len() - 1].iter().any(word)
}
