//! Uses random bytes as each of ASTRA-sim's files in turn. The bytes are accepted, or rejected with an error of a few
//! lines that names the file and a line.

use chakram::astra_sim::{
    AstraNetworkFile, AstraSystemFile, CommGroupFile, InputError, PerNodeCustomAlgorithmPaths,
    RemoteMemoryFile,
};
use chakram::internals::logging;

pub fn fuzz_astra_sim_parsers_with_bytes(data: &[u8]) {
    run_every_parser(&String::from_utf8_lossy(data));
}

/// Runs every parser on `text`.
pub fn run_every_parser(text: &str) {
    let check = |error: InputError| {
        let error = error.to_string();
        assert!(error.starts_with("f:"), "{error:.300}");
        assert!(error.len() < 2000, "{} bytes: {error:.300}", error.len());
    };
    for lenient in [false, true] {
        let _ = AstraSystemFile::parse(text, "f", lenient).map_err(check);
        if let Ok((network, _)) = AstraNetworkFile::parse(text, "f", lenient).map_err(check) {
            assert!(network.npu_count() >= 2 && network.npu_count() <= chakram::ids::MAX_NPUS);
        }
        let _ = RemoteMemoryFile::parse(text, "f", lenient).map_err(check);
        let _ = CommGroupFile::parse(text, "f", lenient).map_err(check);
        let _ = PerNodeCustomAlgorithmPaths::parse(text, "f", lenient).map_err(check);
    }
    let _ = logging::check_logging_file_and_note_no_effect(text, "f").map_err(check);
}
