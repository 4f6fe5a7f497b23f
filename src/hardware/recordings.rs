//! NPU classes of captures, found by the device names in them.

use crate::compute::{KernelDurationSource, RecordingNpuClass};
use crate::devices::preset_and_npu_class_of_device;
use crate::machine::Machine;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Returns `model` for the kernels of a capture on `device`. If the model depends on the recording device and a preset
/// describes it, the result has the device's NPU class. Otherwise returns the model unchanged.
pub fn compute_model_with_recording_class(
    model: KernelDurationSource,
    device: Option<&str>,
) -> KernelDurationSource {
    if model != KernelDurationSource::RecordedOnDevices {
        return model;
    }
    device
        .and_then(class_of_device)
        .map_or(model, KernelDurationSource::RecordedOn)
}

/// Returns the NPU class of devices with this name, or `None` if no preset describes them.
fn class_of_device(name: &str) -> Option<RecordingNpuClass> {
    // The result is cached because every rank of a job needs it.
    static KNOWN: Mutex<BTreeMap<&str, Option<RecordingNpuClass>>> = Mutex::new(BTreeMap::new());
    let [preset, _] = preset_and_npu_class_of_device(name)?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let load = || {
        Machine::load_preset(preset)
            .ok()?
            .npu_classes()
            .first()?
            .to_recording_class()
    };
    *known.entry(preset).or_insert_with(load)
}
