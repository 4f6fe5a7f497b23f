//! Entries of a tar archive, read in order from a stream: nothing is written to disk, and no name is a path of this
//! machine. Formats: the first one (v7), ustar, GNU's long names and pax's records.

use chakram_trace::format::file::read_all;
use std::io::{self, Error, ErrorKind, Read};

/// Size of a header, and of what entries are padded to.
pub const BLOCK: usize = 512;

/// Largest name and largest set of records of an entry, bytes.
const MAX_RECORDS: u64 = 1 << 20;

/// Largest number of entries; archives of captures have a few for each rank.
const MAX_ENTRIES: usize = 1 << 20;

/// Returns whether `head`, the first bytes of a file, begins with the header of an entry: its checksum holds.
pub fn is_tar(head: &[u8]) -> bool {
    let header = head.get(..BLOCK);
    header.is_some_and(|header| header[0] != 0 && has_checksum(header))
}

/// A file in an archive.
pub struct TarFile<'r, R> {
    /// Its name, with the folders in front of it.
    pub name: String,
    /// Its contents, which are skipped as far as they are not read.
    pub contents: io::Take<&'r mut R>,
}

/// Calls `visit` with each file of the archive `source`.
///
/// # Errors
///
/// Fails if the archive breaks off or is malformed, and with the errors of `visit`.
pub fn for_each_file<R: Read>(
    mut source: R,
    mut visit: impl FnMut(&mut TarFile<'_, R>) -> io::Result<()>,
) -> io::Result<()> {
    let malformed = |what: &str| Error::new(ErrorKind::InvalidData, format!("tar: {what}"));
    let mut header = [0; BLOCK];
    // What records say of the next entry.
    let mut long_name: Option<String> = None;
    let mut long_size: Option<u64> = None;
    for _ in 0..MAX_ENTRIES {
        match read_block(&mut source, &mut header)? {
            // The end is two blocks of zeros, which some writers leave out.
            false => return Ok(()),
            true if header.iter().all(|byte| *byte == 0) => return Ok(()),
            true => {}
        }
        if !has_checksum(&header) {
            return Err(malformed("the checksum of an entry does not hold"));
        }
        let own_size =
            number(&header[124..136]).ok_or_else(|| malformed("an entry has no size"))?;
        let kind = header[156];
        let size = match kind {
            b'L' | b'K' | b'x' | b'g' => own_size,
            _ => long_size.take().unwrap_or(own_size),
        };
        let mut contents = (&mut source).take(size);
        match kind {
            b'L' | b'x' if size > MAX_RECORDS => {
                return Err(malformed("the name of an entry is too long"));
            }
            b'L' => {
                let bytes = read_all(&mut contents, size)?;
                let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                long_name = Some(String::from_utf8_lossy(bytes).into_owned());
            }
            b'x' => {
                for (key, value) in records(&read_all(&mut contents, size)?) {
                    match key {
                        b"path" => long_name = Some(String::from_utf8_lossy(value).into_owned()),
                        b"size" => {
                            let text = std::str::from_utf8(value).ok();
                            long_size = text.and_then(|text| text.parse().ok());
                        }
                        _ => {}
                    }
                }
            }
            b'0' | 0 | b'7' => {
                let name = long_name.take().unwrap_or_else(|| name(&header));
                let mut file = TarFile { name, contents };
                visit(&mut file)?;
                contents = file.contents;
            }
            // Folders, links and devices have no contents that count; a sparse file is not one piece.
            b'g' | b'K' => {}
            _ => long_name = None,
        }
        let left = contents.limit();
        if io::copy(&mut contents, &mut io::sink())? < left {
            return Err(malformed("it breaks off inside an entry"));
        }
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        io::copy(&mut (&mut source).take(padding), &mut io::sink())?;
    }
    Err(malformed("it has more entries than captures do"))
}

/// Reads a block; `false` at the end of the source.
fn read_block(source: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < BLOCK {
        match source.read(&mut block[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Returns whether the sum of the bytes is the one in the header, whose own field counts as spaces.
fn has_checksum(header: &[u8]) -> bool {
    const FIELD: std::ops::Range<usize> = 148..156;
    let bytes = header.iter().enumerate();
    let sum: u64 = bytes
        .map(|(at, byte)| match FIELD.contains(&at) {
            true => u64::from(b' '),
            false => u64::from(*byte),
        })
        .sum();
    number(&header[FIELD]) == Some(sum)
}

/// Parses a number: octal digits, or GNU's big-endian bytes after a first bit.
fn number(field: &[u8]) -> Option<u64> {
    if field.first().is_some_and(|byte| byte & 0x80 != 0) {
        let (high, low) = field.split_at(field.len().saturating_sub(8));
        let is_small = high.iter().enumerate().all(|(at, byte)| match at {
            0 => *byte == 0x80,
            _ => *byte == 0,
        });
        return is_small.then(|| low.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches(['\0', ' ']);
    u64::from_str_radix(digits, 8).ok()
}

/// Returns the name in a header, after the prefix that ustar has.
fn name(header: &[u8; BLOCK]) -> String {
    let text = |field: &[u8]| {
        let bytes = field.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let name = text(&header[..100]);
    match &header[257..263] {
        b"ustar\0" if header[345] != 0 => format!("{}/{name}", text(&header[345..500])),
        _ => name,
    }
}

/// Returns the records `LENGTH KEY=VALUE\n` of pax, up to the first that is malformed.
fn records(mut bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut found = Vec::new();
    loop {
        let digits = bytes
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let length = std::str::from_utf8(&bytes[..digits]).ok();
        let length = length.and_then(|text| text.parse::<usize>().ok());
        let record = length.and_then(|length| bytes.get(digits + 1..length));
        let Some(record) = record.and_then(|record| record.strip_suffix(b"\n")) else {
            return found;
        };
        let Some(at) = record.iter().position(|byte| *byte == b'=') else {
            return found;
        };
        found.push((&record[..at], &record[at + 1..]));
        // The length counts its own digits and the end of the line.
        bytes = &bytes[digits + 1 + record.len() + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends an entry of `kind`.
    fn push(tar: &mut Vec<u8>, name: &str, kind: u8, contents: &[u8]) {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[156] = kind;
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        tar.extend(header);
        tar.extend(contents);
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }

    fn files(tar: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for_each_file(tar, |file| {
            let mut contents = Vec::new();
            file.contents.read_to_end(&mut contents)?;
            found.push((file.name.clone(), contents));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn files_come_with_their_names_and_contents() {
        let long = "folder/".repeat(30) + "name";
        let mut tar = Vec::new();
        push(&mut tar, "a/", b'5', b"");
        push(&mut tar, "a/one", b'0', b"1");
        push(
            &mut tar,
            "././@LongLink",
            b'L',
            format!("{long}\0").as_bytes(),
        );
        push(&mut tar, "folder/short", b'0', &[2; 512]);
        // "13 path=a/b\n" has 12 bytes; with a length of 12 the record is "12 path=a/b\n".
        push(&mut tar, "PaxHeader", b'x', b"12 path=a/b\n");
        push(&mut tar, "ab", b'0', b"3");
        assert!(is_tar(&tar));
        let expected = [
            ("a/one", vec![1_u8 + 48]),
            (&long, vec![2; 512]),
            ("a/b", vec![51]),
        ];
        let expected = expected.map(|(name, contents)| (name.to_owned(), contents));
        assert_eq!(files(&tar).unwrap(), expected);
        // With or without the blocks of zeros at the end.
        let mut ended = tar.clone();
        ended.resize(tar.len() + 2 * BLOCK, 0);
        assert_eq!(files(&ended).unwrap(), expected);
        // What is not read is skipped.
        let mut names = 0;
        for_each_file(&tar[..], |_| {
            names += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(names, 3);
    }

    #[test]
    fn damage_is_an_error() {
        let mut tar = Vec::new();
        push(&mut tar, "a", b'0', &[1; 600]);
        for cut in 1..tar.len() {
            if cut < BLOCK + 600 {
                assert!(files(&tar[..cut]).is_err(), "{cut}");
            }
        }
        for at in 0..BLOCK {
            let mut wrong = tar.clone();
            wrong[at] ^= 0x41;
            assert!(files(&wrong).is_err(), "{at}");
            assert!(!is_tar(&wrong), "{at}");
        }
        assert!(!is_tar(&[0; BLOCK]) && !is_tar(b"{\"schema\""));
        let mut claims = Vec::new();
        push(&mut claims, "a", b'L', &[b'x'; 10]);
        claims[124..135].copy_from_slice(b"77777777777");
        assert!(files(&claims).is_err());
    }
}
