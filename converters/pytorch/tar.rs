//! Reads the files of a tar archive from a stream, in order. The reader writes nothing to disk, and
//! never uses names as paths on this machine.

use std::io::{self, Error, ErrorKind, Read};
use tar::{Archive, Entry};

/// Size of a header, in bytes; entries are padded to multiples of this size.
const BLOCK: usize = 512;

/// Maximum number of entries; archives of captures have a few per rank.
const MAX_ENTRIES: usize = 1 << 20;

/// Returns true if `head`, the first bytes of a file, begins with an entry header with a valid checksum.
pub fn begins_with_tar_header(head: &[u8]) -> bool {
    let mut archive = Archive::new(head.get(..BLOCK).unwrap_or_default());
    let first = archive.entries().map(|entries| entries.raw(true).next());
    matches!(first, Ok(Some(Ok(_))))
}

/// Calls `visit` with the name (including folders) and the contents of each file in the archive `source`. Skips
/// contents that `visit` does not read.
///
/// # Errors
///
/// Fails if the archive is truncated or malformed, or if `visit` fails.
pub fn for_each_tar_file<R: Read>(
    source: R,
    mut visit: impl FnMut(&str, &mut Entry<'_, R>) -> io::Result<()>,
) -> io::Result<()> {
    let malformed = |what: String| Error::new(ErrorKind::InvalidData, format!("tar: {what}"));
    let mut archive = Archive::new(source);
    for (number, entry) in archive.entries()?.enumerate() {
        if number >= MAX_ENTRIES {
            return Err(malformed(format!("more than {MAX_ENTRIES} entries")));
        }
        let mut entry = entry.map_err(|error| malformed(error.to_string()))?;
        let kind = entry.header().entry_type();
        // Skip folders, links and devices, which have no contents. Also skip sparse files, which are not stored
        // contiguously.
        if kind.is_file() || kind.is_contiguous() {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            visit(&name, &mut entry)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends an entry of `kind`.
    fn append_tar_entry(tar: &mut Vec<u8>, name: &str, kind: u8, contents: &[u8]) {
        let mut header = [0; BLOCK];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        tar.extend(header);
        tar.extend(contents);
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }

    fn read_tar_files(tar: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for_each_tar_file(tar, |name, file| {
            let mut contents = Vec::new();
            file.read_to_end(&mut contents)?;
            found.push((name.to_owned(), contents));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn files_come_with_their_names_and_contents() {
        let long = "folder/".repeat(30) + "name";
        let mut tar = Vec::new();
        append_tar_entry(&mut tar, "a/", b'5', b"");
        append_tar_entry(&mut tar, "a/one", b'0', b"1");
        append_tar_entry(
            &mut tar,
            "././@LongLink",
            b'L',
            format!("{long}\0").as_bytes(),
        );
        append_tar_entry(&mut tar, "folder/short", b'0', &[2; 512]);
        // The record "13 path=a/b " would be 12 bytes long. "12 path=a/b " states its own length correctly.
        append_tar_entry(&mut tar, "PaxHeader", b'x', b"12 path=a/b\n");
        append_tar_entry(&mut tar, "ab", b'0', b"3");
        assert!(begins_with_tar_header(&tar));
        let expected = [
            ("a/one", vec![1_u8 + 48]),
            (&long, vec![2; 512]),
            ("a/b", vec![51]),
        ];
        let expected = expected.map(|(name, contents)| (name.to_owned(), contents));
        assert_eq!(read_tar_files(&tar).unwrap(), expected);
        // Archives are read both with and without zero blocks at the end.
        let mut ended = tar.clone();
        ended.resize(tar.len() + 2 * BLOCK, 0);
        assert_eq!(read_tar_files(&ended).unwrap(), expected);
        // Contents that the visitor does not read are skipped.
        let mut names = 0;
        for_each_tar_file(&tar[..], |_, _| {
            names += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(names, 3);
    }

    #[test]
    fn damage_is_an_error() {
        let mut tar = Vec::new();
        append_tar_entry(&mut tar, "a", b'0', &[1; 600]);
        for cut in 1..tar.len() {
            if cut < BLOCK + 600 {
                assert!(read_tar_files(&tar[..cut]).is_err(), "{cut}");
            }
        }
        for at in 0..BLOCK {
            let mut wrong = tar.clone();
            wrong[at] ^= 0x41;
            assert!(read_tar_files(&wrong).is_err(), "{at}");
            assert!(!begins_with_tar_header(&wrong), "{at}");
        }
        assert!(!begins_with_tar_header(&[0; BLOCK]) && !begins_with_tar_header(b"{\"schema\""));
        let mut claims = Vec::new();
        append_tar_entry(&mut claims, "a", b'L', &[b'x'; 10]);
        claims[124..135].copy_from_slice(b"77777777777");
        assert!(read_tar_files(&claims).is_err());
    }
}
