//! Tests that extraction overwrites only files with the same content.

use crate::commands::{run_chakram, run_for_exit_code};

#[test]
fn extraction_replaces_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (job, archive, to) = (at("job/job"), at("a.etz"), at("to"));
    std::fs::create_dir(at("job")).unwrap();
    std::fs::create_dir(&to).unwrap();
    for args in [
        &[
            "generate",
            "collective",
            "all-reduce",
            "--size",
            "1MB",
            "--ranks",
            "2",
            "-o",
            &job,
        ][..],
        &["archive", "create", &archive],
        &["archive", "add", &archive, &at("job"), "--name", "w"],
    ] {
        assert!(run_chakram(args).status.success(), "{args:?}");
    }
    let extract = ["archive", "extract", &format!("{archive}::w"), "-o", &to];
    let foreign = format!("{to}/job.1.et");
    std::fs::write(&foreign, "mine").unwrap();
    let refused = run_chakram(&extract);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(
        error.contains("job.1.et: a different file exists"),
        "{error}"
    );
    // No file is written, and no file is lost.
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), 1);
    assert_eq!(std::fs::read(&foreign).unwrap(), b"mine");
    std::fs::remove_file(&foreign).unwrap();
    assert_eq!(run_for_exit_code(&extract), 0);
    // The files already exist, with the content that the first extraction wrote.
    assert_eq!(run_for_exit_code(&extract), 0);
}
