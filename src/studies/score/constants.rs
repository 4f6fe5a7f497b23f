//! Constants of a machine that can be fitted to measurements.

use chakram_base::units::Span;
use chakram_hardware::machine::Machine;
use chakram_trace::format::MemoryBoundKernelClass;

/// A machine constant. The fit multiplies it by a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FittedConstant {
    /// Time that the host takes to launch one kernel.
    Launch,
    /// Time that the host takes to launch one kernel of a backward pass.
    Backward,
    /// Time that the host takes to launch one collective.
    Collective,
    /// Time that the host takes to launch one send or one receive.
    Message,
    /// The fraction of the memory bandwidth that memory-bound kernels reach. Softmax and loss
    /// kernels have separate fractions.
    Memory,
    /// The fraction of the memory bandwidth that softmax kernels reach.
    Softmax,
    /// The fraction of the memory bandwidth that loss kernels reach.
    CrossEntropy,
}

impl FittedConstant {
    /// All constants, each with its name.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Launch, "launch"),
        (Self::Backward, "backward"),
        (Self::Collective, "collective"),
        (Self::Message, "message"),
        (Self::Memory, "memory"),
        (Self::Softmax, "softmax"),
        (Self::CrossEntropy, "cross-entropy"),
    ];

    /// Returns the constant's name.
    pub fn constant_name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns a predicate that selects the kernel classes affected by a bandwidth fraction; `None` for a time.
    fn affected_kernel_classes(self) -> Option<fn(MemoryBoundKernelClass) -> bool> {
        match self {
            Self::Memory => Some(|class| {
                !matches!(
                    class,
                    MemoryBoundKernelClass::Softmax | MemoryBoundKernelClass::CrossEntropy
                )
            }),
            Self::Softmax => Some(|class| class == MemoryBoundKernelClass::Softmax),
            Self::CrossEntropy => Some(|class| class == MemoryBoundKernelClass::CrossEntropy),
            _ => None,
        }
    }

    /// Returns true for a bandwidth fraction, and false for a time.
    pub fn is_bandwidth_fraction(self) -> bool {
        self.affected_kernel_classes().is_some()
    }

    /// Returns the constant's value in `machine`, in microseconds or as a fraction; `None` if the machine lacks the
    /// constant.
    pub fn value_in_machine(self, machine: &Machine) -> Option<f64> {
        if let Some(of) = self.affected_kernel_classes() {
            let mut classes = machine.npu_classes().iter();
            let first = MemoryBoundKernelClass::ALL
                .map(|(class, _)| class)
                .into_iter()
                .find(|&class| of(class))?;
            return classes
                .find_map(|class| Some(class.curves.moving.as_ref()?.fractions[first as usize]));
        }
        let host = machine.host()?;
        let span = match self {
            Self::Backward => host.backward,
            Self::Collective => host.collective,
            Self::Message => host.message,
            _ => host.launch,
        };
        Some(span.as_seconds() * 1e6)
    }
}

/// Returns `machine` with each of `constants` multiplied by its factor.
pub fn scale_machine_constants(machine: &Machine, constants: &[(FittedConstant, f64)]) -> Machine {
    let times = |span: Span, factor: f64| Span::from_seconds_saturating(span.as_seconds() * factor);
    machine.with_changed_host_and_curves(|host, curves| {
        for &(constant, factor) in constants {
            if let Some(of) = constant.affected_kernel_classes() {
                let moving = curves
                    .iter_mut()
                    .filter_map(|curves| curves.moving.as_mut());
                for (fraction, (class, _)) in moving
                    .flat_map(|moving| moving.fractions.iter_mut().zip(MemoryBoundKernelClass::ALL))
                {
                    *fraction *= if of(class) { factor } else { 1.0 };
                }
            }
            match (constant, &mut *host) {
                (FittedConstant::Launch, Some(host)) => host.launch = times(host.launch, factor),
                (FittedConstant::Backward, Some(host)) => {
                    host.backward = times(host.backward, factor);
                }
                (FittedConstant::Collective, Some(host)) => {
                    host.collective = times(host.collective, factor);
                }
                (FittedConstant::Message, Some(host)) => {
                    host.message = times(host.message, factor);
                }
                _ => {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_change_what_they_name_and_nothing_else() {
        let machine = Machine::load_preset("dgx-a100").unwrap();
        let all = FittedConstant::ALL.map(|(constant, _)| constant);
        for changed in all {
            let other = scale_machine_constants(&machine, &[(changed, 2.0)]);
            for constant in all {
                let (before, after) = (
                    constant.value_in_machine(&machine),
                    constant.value_in_machine(&other),
                );
                let factor = if constant == changed { 2.0 } else { 1.0 };
                assert_eq!(after, before.map(|b| b * factor), "{constant:?}");
            }
        }
        // Without factors, the machine is unchanged.
        assert_eq!(scale_machine_constants(&machine, &[]), machine);
    }
}
