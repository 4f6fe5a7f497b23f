//! Searches a string for private information.
//!
//! | kind | pattern |
//! |---|---|
//! | e-mail | `name@domain.tld` |
//! | ip | IPv4 in four parts, except 0.… and 127.…; IPv6 in the global, local and link-local ranges |
//! | mac | six pairs of hexadecimal digits, separated by `:` or `-` |
//! | host | `scheme://…`; names under a domain; machine names such as `gpu-node-07`; values of `host=` |
//! | path | `/` followed by two parts or by a common root, `~/`, `./`, drive letters, `\\host\share`; files with extensions of sources and data |
//! | user | the name in `/home/NAME`, `C:\Users\NAME`, `~NAME/`; values of `user=` |
//! | stack | `file.py(12)`, `file.py:12`, `File "…", line 12`, `Traceback` |
//! | secret | keys with a known prefix; 32 or more hexadecimal digits; 32 or more letters and digits that look random; values of `password=` |

mod paths_and_hosts;
mod secret;

use paths_and_hosts::{find_hosts, find_paths};
use std::fmt;
use std::net::Ipv6Addr;

/// Kind of private information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeakKind {
    /// Name of a machine.
    Host,
    /// IP address.
    Ip,
    /// MAC address of a network card.
    Mac,
    /// Path of a file.
    Path,
    /// Name of a user.
    User,
    /// An e-mail address.
    Email,
    /// Lines of a stack trace.
    Stack,
    /// Key, token or password.
    Secret,
}

impl LeakKind {
    /// All kinds of leaks with their names.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Host, "host"),
        (Self::Ip, "ip"),
        (Self::Mac, "mac"),
        (Self::Path, "path"),
        (Self::User, "user"),
        (Self::Email, "e-mail"),
        (Self::Stack, "stack"),
        (Self::Secret, "secret"),
    ];
}

impl fmt::Display for LeakKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// A private part of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateTextPart<'a> {
    /// Kind of private information.
    pub kind: LeakKind,
    /// The private part of the string.
    pub text: &'a str,
}

/// Returns true if `text` contains private information.
pub fn contains_private_information(text: &str) -> bool {
    !find_leaks(text).is_empty()
}

/// Returns the private parts of `text`, grouped by the search that found them (e-mail addresses, paths, hosts and so
/// on).
pub fn find_leaks(text: &str) -> Vec<PrivateTextPart<'_>> {
    let mut found = Vec::new();
    // The searches for e-mail addresses, paths and hosts are fast, because each looks for a character that most
    // operator names do not contain.
    find_emails(text, &mut found);
    find_ipv4(text, &mut found);
    find_ipv6_and_mac(text, &mut found);
    find_stack_frames(text, &mut found);
    find_values_of_sensitive_keys(text, &mut found);
    secret::find_secrets(text, &mut found);
    let apart = |c: char| c.is_whitespace() || "'\"`()[]{}<>,;|=".contains(c);
    for token in text.split(apart) {
        let token = token.trim_end_matches(['.', ':', '!', '?']);
        if !token.is_empty() {
            find_paths(token, &mut found);
            find_hosts(token, &mut found);
        }
    }
    found
}

/// Returns true if a byte can be part of a word.
pub(super) fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

/// Returns the byte before index `at`, if there is one.
pub(super) fn byte_before(text: &str, at: usize) -> Option<u8> {
    at.checked_sub(1).map(|at| text.as_bytes()[at])
}

/// Returns how many consecutive bytes satisfy `test`, starting at index `at`.
fn count_bytes_while(text: &str, at: usize, test: impl Fn(u8) -> bool) -> usize {
    text.as_bytes()[at..]
        .iter()
        .take_while(|&&b| test(b))
        .count()
}

fn find_emails<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    for (at, _) in text.match_indices('@') {
        let bytes = text.as_bytes();
        let local = |b: u8| b.is_ascii_alphanumeric() || b"._%+-".contains(&b);
        let start = at - bytes[..at].iter().rev().take_while(|&&b| local(b)).count();
        let length = count_bytes_while(text, at + 1, |b| {
            b.is_ascii_alphanumeric() || b == b'.' || b == b'-'
        });
        let domain = text[at + 1..at + 1 + length].trim_end_matches(['.', '-']);
        let last = domain.rsplit_once('.');
        let ends = last.is_some_and(|(rest, last)| {
            !rest.is_empty() && last.len() >= 2 && last.bytes().all(|b| b.is_ascii_alphabetic())
        });
        if start < at && ends {
            found.push(PrivateTextPart {
                kind: LeakKind::Email,
                text: &text[start..at + 1 + domain.len()],
            });
        }
    }
}

fn find_ipv4<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let bytes = text.as_bytes();
    for at in 0..bytes.len() {
        let first = bytes[at].is_ascii_digit()
            && byte_before(text, at).is_none_or(|b| !is_word_byte(b) && b != b'.');
        if !first {
            continue;
        }
        let length = count_bytes_while(text, at, |b| b.is_ascii_digit() || b == b'.');
        let address = text[at..at + length].trim_end_matches('.');
        let parts: Vec<&str> = address.split('.').collect();
        let next = bytes.get(at + length).is_some_and(|&b| is_word_byte(b));
        let octet = |part: &&str| part.len() <= 3 && part.parse::<u8>().is_ok();
        if parts.len() == 4 && parts.iter().all(octet) && !next && !matches!(parts[0], "0" | "127")
        {
            found.push(PrivateTextPart {
                kind: LeakKind::Ip,
                text: address,
            });
        }
    }
}

/// Returns true if `text` is six pairs of hexadecimal digits.
fn is_mac_address(text: &[u8]) -> bool {
    let apart = text.get(2).copied().unwrap_or(0);
    let sound = |(i, &b): (usize, &u8)| match i % 3 {
        2 => b == apart,
        _ => b.is_ascii_hexdigit(),
    };
    text.len() == 17 && matches!(apart, b':' | b'-') && text.iter().enumerate().all(sound)
}

fn find_ipv6_and_mac<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let part = |b: u8| b.is_ascii_hexdigit() || b == b':' || b == b'-';
        let length = count_bytes_while(text, at, part);
        if length == 0 {
            at += 1;
            continue;
        }
        let (start, end) = (at, at + length);
        at = end;
        let closed = |end: usize| bytes.get(end).is_none_or(|&b| !is_word_byte(b));
        let open = byte_before(text, start).is_none_or(|b| !is_word_byte(b));
        for from in start..end {
            let apart = if from == start {
                open
            } else {
                matches!(bytes[from - 1], b':' | b'-')
            };
            let pair = bytes.get(from..from + 17).is_some_and(is_mac_address);
            if apart && pair && closed(from + 17) && from + 17 <= end {
                found.push(PrivateTextPart {
                    kind: LeakKind::Mac,
                    text: &text[from..from + 17],
                });
                break;
            }
        }
        // A word and a colon may precede the address; skip both.
        let mut address = &text[start..end];
        if !open {
            let Some(rest) = address.split_once(':').map(|(_, rest)| rest) else {
                continue;
            };
            address = rest;
        }
        let address = address.trim_matches('-');
        let address = address.strip_suffix(':').unwrap_or(address);
        if closed(end) && is_ipv6(address) {
            found.push(PrivateTextPart {
                kind: LeakKind::Ip,
                text: address,
            });
        }
    }
}

/// Returns true if `text` is an IPv6 address in an assigned range. Names such as `c10d::add` are not such addresses.
fn is_ipv6(text: &str) -> bool {
    let four = text.split(':').next().is_some_and(|first| first.len() == 4);
    let address: Option<Ipv6Addr> = text.parse().ok().filter(|_| four);
    let first = address.map_or(0, |address| address.segments()[0]);
    matches!(first, 0x2000..=0x3fff | 0xfc00..=0xfdff | 0xfe80..=0xfebf)
}

fn find_stack_frames<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    let mut add = |text: &'a str| {
        found.push(PrivateTextPart {
            kind: LeakKind::Stack,
            text,
        });
    };
    if let Some(at) = text.find("Traceback (most") {
        add(&text[at..]);
    }
    if let Some(at) = text
        .find("File \"")
        .filter(|&at| text[at..].contains("\", line "))
    {
        add(&text[at..]);
    }
    for (at, _) in text.match_indices(".py") {
        let line = text.as_bytes().get(at + 3..at + 5);
        let numbered = line.is_some_and(|l| matches!(l[0], b'(' | b':') && l[1].is_ascii_digit());
        if numbered {
            let name = |b: &&u8| is_word_byte(**b) || b"./\\-".contains(*b);
            let length = text.as_bytes()[..at].iter().rev().take_while(name).count();
            let digits = count_bytes_while(text, at + 4, |b| b.is_ascii_digit());
            add(&text[at - length..at + 4 + digits]);
        }
    }
}

/// Keys that mark values as private in strings such as `KEY=VALUE`.
const SENSITIVE_KEYS: [(&str, LeakKind); 9] = [
    ("hostname", LeakKind::Host),
    ("host", LeakKind::Host),
    ("user", LeakKind::User),
    ("username", LeakKind::User),
    ("logname", LeakKind::User),
    ("password", LeakKind::Secret),
    ("passwd", LeakKind::Secret),
    ("secret", LeakKind::Secret),
    ("api_key", LeakKind::Secret),
];

fn find_values_of_sensitive_keys<'a>(text: &'a str, found: &mut Vec<PrivateTextPart<'a>>) {
    for (at, _) in text.match_indices('=') {
        let bytes = text.as_bytes();
        let length = bytes[..at]
            .iter()
            .rev()
            .take_while(|&&b| is_word_byte(b))
            .count();
        let word = &text[at - length..at];
        let said = SENSITIVE_KEYS
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(word));
        let size = count_bytes_while(text, at + 1, |b| {
            !b.is_ascii_whitespace() && !b",;)]}'\"".contains(&b)
        });
        let value = &text[at + 1..at + 1 + size];
        let telling = value.bytes().any(|b| b.is_ascii_alphabetic())
            && !matches!(value, "None" | "True" | "False" | "true" | "false" | "null");
        if let (Some((_, kind)), true) = (said, telling) {
            found.push(PrivateTextPart {
                kind: *kind,
                text: value,
            });
        }
    }
}
