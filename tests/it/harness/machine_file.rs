//! Uses random bytes as a machine file. The file is rejected with an error, or gives a consistent
//! machine.

use chakram::ids::Npu;
use chakram::machine::Machine;

/// Runs the target on `data`.
pub fn check_machine_file_bytes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let machine = match Machine::parse(text, "fuzz.toml") {
        Ok(machine) => machine,
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("fuzz.toml"), "{error}");
            return;
        }
    };
    let npus = machine.topology().npu_count();
    assert!(npus >= 1);
    assert_eq!(
        machine.collective_algorithms().len(),
        machine.topology().dimensions().len()
    );
    let mut next = 0;
    for (first, last, class) in machine.npu_ranges_of_one_class() {
        assert_eq!(first.0, next, "each NPU once");
        assert!(first <= last && class < machine.npu_classes().len());
        assert_eq!(
            (machine.class_of_npu(first), machine.class_of_npu(last)),
            (class, class)
        );
        next = last.0 + 1;
    }
    assert_eq!(next, npus);
    if npus > 1 {
        let path = machine.topology().path_between_npus(Npu(0), Npu(npus - 1));
        assert!(path.is_some_and(|p| p.bandwidth.bytes_per_second() > 0.0));
    }
}
