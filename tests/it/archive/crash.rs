//! Tests commands that are killed, that run at the same time, or that run out of disk space.

use super::{ArchiveTestFolder, list_workload_names};
use chakram::archive::Archive;
use std::process::{Command, Stdio};
use std::time::Duration;

fn build_silent_chakram_command(corpus: &ArchiveTestFolder, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chakram"));
    let words = words.iter().map(|word| match word.strip_prefix('@') {
        Some(path) => corpus.path_text(path),
        None => (*word).to_owned(),
    });
    command
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Runs a command and kills it after `micros` microseconds. Returns `false` if the command had
/// already ended.
fn run_and_kill(corpus: &ArchiveTestFolder, words: &[&str], micros: u64) -> bool {
    let mut child = build_silent_chakram_command(corpus, words).spawn().unwrap();
    std::thread::sleep(Duration::from_micros(micros));
    let done = child.try_wait().unwrap().is_some();
    let _ = child.kill();
    child.wait().unwrap();
    !done
}

/// Returns a number below `n`, and advances the generator.
fn draw_below(state: &mut u64, n: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

#[test]
fn adds_that_are_killed_lose_nothing() {
    kill_adds(20);
}

#[test]
fn collections_and_merges_that_are_killed_lose_nothing() {
    kill_collections_and_merges(8);
}

#[test]
#[ignore = "takes minutes: cargo test --release --test it archive -- --ignored"]
fn two_hundred_killed_commands_lose_nothing() {
    kill_adds(200);
    kill_collections_and_merges(200);
}

/// Kills `kills` add commands at random times. After each kill, checks that all workloads that were
/// added before are still present and complete. The time limit is a little longer than an add
/// command, so a few add commands end before the kill.
fn kill_adds(kills: u64) {
    for (archive, kind) in [("@a.etz", &[][..]), ("@a", &["--folder"])] {
        let corpus = ArchiveTestFolder::new();
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        corpus.add_small_job(archive, "first", "1");
        corpus.run_successfully(&[
            "generate",
            "data-parallel",
            "--ranks",
            "4",
            "--layers",
            "40",
            "-o",
            "@job/job",
        ]);
        let path = corpus.at(&archive[1..]);
        // The archive has some of the traces but lacks one file, so every add command has something to write.
        let mut state = 7;
        let noise = |state: &mut u64| {
            let noise: Vec<u8> = (0..300_000).map(|_| draw_below(state, 256) as u8).collect();
            std::fs::write(corpus.at("noise"), noise).unwrap();
        };
        let words = ["archive", "add", archive, "@job/job", "--with", "@noise"];
        noise(&mut state);
        let started = std::time::Instant::now();
        corpus.run_successfully(&[&words[..], &["--name", "whole"]].concat());
        let micros = started.elapsed().as_micros() as u64;
        let mut killed = 0;
        let mut there = vec!["first".to_owned(), "whole".to_owned()];
        for number in 0.. {
            if killed == kills {
                break;
            }
            assert!(number < 20 * kills, "{killed} of {number} were killed");
            let name = format!("x{number}");
            noise(&mut state);
            let at = draw_below(&mut state, micros * 5 / 4);
            let dead = run_and_kill(&corpus, &[&words[..], &["--name", &name]].concat(), at);
            killed += u64::from(dead);
            let found = list_workload_names(&path);
            assert!(dead || found.contains(&name), "{found:?}");
            assert!(there.iter().all(|name| found.contains(name)), "{found:?}");
            let verdict = Archive::open_archive(&path)
                .unwrap()
                .verify_all(&|| ())
                .unwrap();
            assert!(verdict.is_sound(), "{verdict:?}");
            there = found;
        }
    }
}

/// Kills `kills` garbage collections that drop a workload, and `kills` merges that restore this workload.
fn kill_collections_and_merges(kills: u64) {
    let corpus = ArchiveTestFolder::new();
    corpus.run_successfully(&["archive", "create", "@other.etz"]);
    corpus.add_small_job("@other.etz", "other", "30");
    for (archive, kind) in [("@a.etz", &[][..]), ("@a", &["--folder"])] {
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        for (name, layers) in [("one", "20"), ("two", "21")] {
            corpus.add_small_job(archive, name, layers);
        }
        let path = corpus.at(&archive[1..]);
        let merge = ["archive", "merge", archive, "@other.etz"];
        let collect = ["archive", "gc", archive, "--drop", "other"];
        let timed = |words: &[&str]| {
            let started = std::time::Instant::now();
            corpus.run_successfully(words);
            started.elapsed().as_micros() as u64
        };
        let micros = [timed(&merge), timed(&collect)];
        let (mut state, mut killed, mut done) = (3, [0; 2], [0; 2]);
        while killed.iter().any(|killed| *killed < kills) {
            assert!(
                done.iter().all(|done| *done < 20 * kills),
                "{killed:?} were killed"
            );
            // A killed command has had either its full effect or none. Run it again.
            let there = list_workload_names(&path).contains(&"other".to_owned());
            let which = usize::from(there);
            let words = if there { &collect[..] } else { &merge };
            let dead = run_and_kill(
                &corpus,
                words,
                draw_below(&mut state, micros[which] * 5 / 4),
            );
            *if dead { &mut killed } else { &mut done }
                .get_mut(which)
                .unwrap() += 1;
            let found = list_workload_names(&path);
            assert!(
                ["one", "two"]
                    .iter()
                    .all(|name| found.contains(&(*name).to_owned())),
                "{found:?}"
            );
            assert!(dead || found.contains(&"other".to_owned()) != there);
            assert!(
                Archive::open_archive(&path)
                    .unwrap()
                    .verify_all(&|| ())
                    .unwrap()
                    .is_sound()
            );
        }
        corpus.run_successfully(&["archive", "gc", archive, "--drop", "two"]);
        assert!(!list_workload_names(&path).contains(&"two".to_owned()));
        corpus.run_successfully(&["archive", "verify", archive]);
    }
}

#[test]
fn adds_at_the_same_time_are_all_there() {
    for (archive, kind) in [("@a.etz", &[][..]), ("@a", &["--folder"])] {
        let corpus = ArchiveTestFolder::new();
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        corpus.run_successfully(&[
            "generate",
            "data-parallel",
            "--ranks",
            "2",
            "--layers",
            "3",
            "-o",
            "@job/job",
        ]);
        let words = |name: &'static str| ["archive", "add", archive, "@job/job", "--name", name];
        let all = ["a", "b", "c", "d", "e", "f"];
        let children: Vec<_> = all
            .iter()
            .map(|name| {
                build_silent_chakram_command(&corpus, &words(name))
                    .spawn()
                    .unwrap()
            })
            .collect();
        let path = corpus.at(&archive[1..]);
        // A concurrent reader may miss some workloads, but every workload that it sees is complete.
        for _ in 0..20 {
            assert!(
                Archive::open_archive(&path)
                    .unwrap()
                    .verify_all(&|| ())
                    .unwrap()
                    .is_sound()
            );
        }
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(list_workload_names(&path), all);
        corpus.run_successfully(&["archive", "verify", archive]);
        // Only one add can take a name.
        let error = corpus
            .run_failing_with_code(2, &["archive", "add", archive, "@job/job", "--name", "a"]);
        assert!(error.contains("--replace"), "{error}");
        corpus.run_successfully(&[
            "archive",
            "add",
            archive,
            "@job/job",
            "--name",
            "a",
            "--replace",
        ]);
    }
}

#[test]
fn a_full_disk_leaves_the_archive_as_it_was() {
    for (archive, kind) in [("@a.etz", &[][..]), ("@a", &["--folder"])] {
        let corpus = ArchiveTestFolder::new();
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        corpus.add_small_job(archive, "first", "1");
        let before = super::read_folder_files(&corpus.at(""))
            .into_iter()
            .filter(|(name, _)| name.starts_with("/a"));
        let before: Vec<_> = before.collect();
        // A file of random bytes is larger than the file size limit.
        let noise: Vec<u8> = (0..200_000u64)
            .map(|i| {
                let mixed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
            })
            .collect();
        std::fs::write(corpus.at("noise"), noise).unwrap();
        let (noise, path) = (corpus.path_text("noise"), corpus.path_text(&archive[1..]));
        let script = format!(
            "trap '' XFSZ; ulimit -f 40; exec {} archive add {path} {} --name second --with {noise}",
            env!("CARGO_BIN_EXE_chakram"),
            corpus.path_text("first/job")
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("cannot write"), "{error}");
        let after = super::read_folder_files(&corpus.at(""))
            .into_iter()
            .filter(|(name, _)| name.starts_with("/a"));
        assert!(before == after.collect::<Vec<_>>());
        corpus.run_successfully(&["archive", "verify", archive]);
    }
}

/// The root user may write everywhere, so if the test runs as root, run the command as another user.
#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_leaves_the_archive_as_it_was() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    for (archive, kind) in [("@in/a.etz", &[][..]), ("@in/a", &["--folder"])] {
        let corpus = ArchiveTestFolder::new();
        std::fs::create_dir(corpus.at("in")).unwrap();
        corpus.run_successfully(&[&["archive", "create", archive], kind].concat());
        corpus.add_small_job(archive, "first", "1");
        let before = super::read_folder_files(&corpus.at("in"));
        let set_mode = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let folders = [corpus.at("in"), corpus.at("in/a"), corpus.at("in/a/packs")];
        set_mode(&corpus.at(""), 0o755);
        for folder in folders.iter().filter(|path| path.is_dir()) {
            set_mode(folder, 0o555);
        }
        let mut add = build_silent_chakram_command(
            &corpus,
            &["archive", "add", archive, "@first/job", "--name", "second"],
        );
        add.stderr(Stdio::piped());
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            add.uid(65_534).gid(65_534);
        }
        let output = add.output().unwrap();
        for folder in folders.iter().filter(|path| path.is_dir()) {
            set_mode(folder, 0o755);
        }
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("cannot ") && error.contains("Permission denied"),
            "{error}"
        );
        assert!(before == super::read_folder_files(&corpus.at("in")));
        corpus.run_successfully(&["archive", "verify", archive]);
    }
}
