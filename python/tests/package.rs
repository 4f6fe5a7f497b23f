//! Runs the tests of the Python package on the native library that `cargo` built.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns the interpreter: `PYTHON`, or `python3`, if it is 3.9 or later.
fn find_python() -> Option<PathBuf> {
    let python = PathBuf::from(env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
    let version = "import sys; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new(&python).args(["-c", version]).status();
    found.is_ok_and(|status| status.success()).then_some(python)
}

/// Returns the native library, which cargo puts into the folder of this test.
fn native_library_path() -> PathBuf {
    let test = env::current_exe().expect("a test runs from a file");
    let built = |name| test.with_file_name(name);
    let linux = built("lib_chakram.so");
    if linux.exists() {
        return linux;
    }
    built("lib_chakram.dylib")
}

/// Assembles the package in `folder` as a wheel would install it.
fn assemble_package_in_folder(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let package = folder.join("chakram");
    fs::create_dir(&package)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("package/chakram");
    for file in fs::read_dir(&source)? {
        let file = file?;
        if file.file_type()?.is_file() {
            fs::copy(file.path(), package.join(file.file_name()))?;
        }
    }
    fs::copy(native_library_path(), package.join("_chakram.abi3.so"))?;
    Ok(package)
}

/// The generated functions match the command line, and the tests in Python pass. If the variable `BLESS` is set, the
/// functions are generated first.
#[test]
fn pythons_own_tests_pass() -> Result<(), Box<dyn Error>> {
    let Some(python) = find_python() else {
        println!("SKIPPED: the Python package, for there is no Python 3.9 or later");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let package = assemble_package_in_folder(folder.path())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = |arguments: &[&str]| -> Result<(), Box<dyn Error>> {
        let mut command = Command::new(&python);
        command.current_dir(root).args(arguments);
        command.env("PYTHONPATH", folder.path());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let status = command.status()?;
        assert!(status.success(), "{arguments:?}: {status}");
        Ok(())
    };
    if env::var_os("BLESS").is_some() {
        run(&["generate_api.py"])?;
        fs::copy(
            root.join("package/chakram/_api.py"),
            package.join("_api.py"),
        )?;
    }
    run(&["generate_api.py", "--check"])?;
    let tests = [
        "--start-directory",
        "tests",
        "--top-level-directory",
        "tests",
    ];
    run(&[&["-m", "unittest", "discover"], &tests[..]].concat())
}
