//! Tests `capture.py`, and the environments that it rejects, each with a stub of PyTorch.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

/// A stub module with everything that the script uses. The code in `change` is appended.
fn write_torch_stub(folder: &Path, change: &str) {
    let package = folder.join("torch");
    std::fs::create_dir_all(&package).unwrap();
    let text = format!(
        "class Any: pass\n\
         __version__ = '2.9.1+cpu'\n\
         version, distributed, profiler, cuda = Any(), Any(), Any(), Any()\n\
         version.cuda = version.hip = None\n\
         distributed.is_available = distributed.is_gloo_available = lambda: True\n\
         distributed.is_nccl_available = lambda: False\n\
         profiler.kineto_available = lambda: True\n\
         profiler.profile = lambda execution_trace_observer=None: None\n\
         cuda.is_available, cuda.device_count = lambda: False, lambda: 2\n\
         cuda.get_device_name = lambda i: 'H100'\n\
         {change}\n"
    );
    std::fs::write(package.join("__init__.py"), text).unwrap();
}

/// Runs the script in `folder`, which contains the stub `torch`; `None` if there is no Python.
fn run_capture_script_with_stub_torch(
    folder: &Path,
    args: &[&str],
    variables: &[(&str, &str)],
) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("converters/pytorch/capture.py");
    // Exclude the system's packages, which may contain a real PyTorch.
    let mut python = Command::new("python3");
    python.args(["-S", "-B"]).arg(script).args(args);
    python.current_dir(folder).env("PYTHONPATH", folder);
    for name in ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        python.env_remove(name);
    }
    match python.envs(variables.iter().copied()).output() {
        Ok(output) => Some(output),
        Err(_) => {
            // Write to standard error directly, because the harness shows output only of failing
            // tests.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: capture.py, for there is no python3"
            );
            None
        }
    }
}

const CHECK: [&str; 3] = ["--check", "--out", "capture"];

#[test]
fn an_environment_that_cannot_capture_is_refused_with_what_to_try() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refused = |args: &[&str], variables: &[(&str, &str)], part: &str| {
        let Some(output) = run_capture_script_with_stub_torch(folder, args, variables) else {
            return;
        };
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{part}: {error}");
        assert!(error.contains(part), "{part}: {error}");
        assert!(error.contains("\n  try: "), "{part}: {error}");
        assert!(!error.contains("Traceback"), "{part}: {error}");
    };
    refused(&CHECK, &[], "there is no PyTorch in this Python");
    for (change, part) in [
        ("__version__ = '2.4.1'", "this is PyTorch 2.4.1"),
        ("import nowhere", "its module nowhere is not"),
        ("raise OSError('libgomp.so.1: gone')", "libgomp.so.1: gone"),
        (
            "distributed.is_available = lambda: False",
            "without torch.distributed",
        ),
        (
            "distributed.is_gloo_available = lambda: False",
            "without gloo",
        ),
        (
            "profiler.kineto_available = lambda: False",
            "without Kineto",
        ),
        (
            "profiler.profile = lambda: None",
            "takes no execution_trace_observer",
        ),
        ("cuda.is_available = lambda: True", "without NCCL"),
    ] {
        write_torch_stub(folder, change);
        refused(&CHECK, &[], part);
    }
    write_torch_stub(
        folder,
        "cuda.is_available = distributed.is_nccl_available = lambda: True",
    );
    let four = [("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")];
    refused(&CHECK, &four, "4 ranks on this machine, which has 2 GPUs");
    write_torch_stub(folder, "");
    refused(&["cnn", "--out", "capture"], &[], "started by torchrun");
    std::fs::create_dir_all(folder.join("capture")).unwrap();
    std::fs::write(folder.join("capture/kineto.7.json"), "{}").unwrap();
    let two = [("WORLD_SIZE", "2"), ("RANK", "0")];
    refused(
        &CHECK,
        &two,
        "has a capture of rank 7, and this job has 2 ranks",
    );
    std::fs::write(folder.join("file"), "").unwrap();
    refused(
        &["--check", "--out", "file/x"],
        &[],
        "cannot write into file/x",
    );
}

#[test]
fn an_environment_that_can_capture_says_on_what() {
    let folder = tempfile::tempdir().unwrap();
    for (change, part) in [
        ("", "torch    2.9.1+cpu: built for CPUs"),
        ("version.cuda = '12.8'", "CUDA 12.8, and "),
        (
            "cuda.is_available = distributed.is_nccl_available = lambda: True\nversion.cuda = '12.8'",
            "captures on 2 GPUs (H100), with NCCL",
        ),
    ] {
        write_torch_stub(folder.path(), change);
        let Some(output) = run_capture_script_with_stub_torch(folder.path(), &CHECK, &[]) else {
            return;
        };
        assert!(output.status.success(), "{output:?}");
        let found = String::from_utf8(output.stdout).unwrap();
        assert!(found.contains(part), "{part}: {found}");
        assert!(found.contains("folder   capture, writable, "), "{found}");
    }
}
