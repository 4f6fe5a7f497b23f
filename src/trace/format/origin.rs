//! Places of nodes in the program that was captured: who called them, in which step, and from which calls of Python.
//!
//! Nothing of this changes a replay. A step and a call of Python hold for a node and for all that it called, unless these
//! state their own.

use super::TraceError;
use super::attr::AttrView;

/// Attribute of a node on the host with the id of the operator or range around it.
pub const PARENT: &str = "parent";
/// Attribute of a node of a device with the id of the node on the host that launched it.
pub const LAUNCH: &str = "launch";
/// Attribute with the number of the profiled step, where it is another than the caller's.
pub const STEP: &str = "step";
/// Attribute with the number, from 1, of the innermost call of Python in [`CallStacks`], where it is another than the
/// caller's; 0 for none.
pub const STACK: &str = "stack";

/// Place of a node in the program, as far as its record states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeOrigin {
    /// Id of the node that called or launched it.
    pub caller: Option<u64>,
    /// Number of its step.
    pub step: Option<u64>,
    /// Number of its innermost call of Python, from 1; 0 for none.
    pub stack: Option<u64>,
}

impl NodeOrigin {
    /// Takes the attribute, if it can be read: a value that makes no sense says nothing.
    #[inline(never)]
    pub(super) fn take(&mut self, attr: &AttrView<'_>) {
        let field = match attr.name {
            b"parent" | b"launch" => &mut self.caller,
            b"step" => &mut self.step,
            _ => &mut self.stack,
        };
        if let Ok(value) = attr.as_u64() {
            *field = Some(value);
        }
    }
}

/// Returns the number of the step that PyTorch's profiler marks by a range of this name.
pub fn profiled_step(name: &str) -> Option<u64> {
    name.strip_prefix("ProfilerStep#")?.parse().ok()
}

/// A call of a Python function or module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonCall {
    /// Index of its name in [`CallStacks::names`].
    pub name: u32,
    /// Index of the call around it, which is smaller than its own.
    pub caller: Option<u32>,
}

/// Calls of Python around the nodes of a trace, as its metadata record has them: each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStacks {
    /// Names of functions and modules.
    pub names: Vec<String>,
    /// The calls, each after the one around it.
    pub calls: Vec<PythonCall>,
}

/// Beginning of the names of modules, as PyTorch's profiler writes them: `nn.Module: Linear_3`.
const MODULE: &str = "nn.Module: ";

impl CallStacks {
    /// Attributes of the metadata record: the names, a list of texts; and of each call the number of its name and the
    /// distance to the call around it, 0 if there is none.
    pub const ATTRIBUTES: [&str; 2] = ["stack_names", "stacks"];

    /// Returns whether there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the name of a call.
    pub fn name(&self, call: u32) -> &str {
        &self.names[self.calls[call as usize].name as usize]
    }

    /// Returns the name of the module that a call is of, without the words before it; `None` if it is of a function.
    pub fn module(&self, call: u32) -> Option<&str> {
        self.name(call).strip_prefix(MODULE)
    }

    /// Returns whether a range of this name is a call of a module.
    pub fn is_module(name: &str) -> bool {
        name.starts_with(MODULE)
    }

    /// Returns the call and those around it, innermost first.
    pub fn outward(&self, call: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(call), |&call| self.calls[call as usize].caller)
    }

    /// Returns the innermost call that two calls are in or are.
    pub fn common(&self, one: u32, other: u32) -> Option<u32> {
        let (mut one, mut other) = (one, other);
        // What calls another has a smaller number.
        while one != other {
            let later = if one > other { &mut one } else { &mut other };
            *later = self.calls[*later as usize].caller?;
        }
        Some(one)
    }

    /// Returns the numbers that state the calls in the metadata record.
    pub fn numbers(&self) -> Vec<i64> {
        let calls = (0_i64..).zip(&self.calls);
        let numbers = calls.flat_map(|(own, call)| {
            let distance = call.caller.map_or(0, |caller| own - i64::from(caller));
            [i64::from(call.name), distance]
        });
        numbers.collect()
    }

    /// Takes the attribute of the metadata record, if it is one of [`CallStacks::ATTRIBUTES`]; returns whether it is.
    pub(super) fn take(&mut self, attr: &AttrView<'_>) -> Result<bool, TraceError> {
        let [names, calls] = Self::ATTRIBUTES.map(str::as_bytes);
        if attr.name == names {
            let texts = attr.as_texts()?.unwrap_or_default();
            self.names = texts.into_iter().map(str::to_owned).collect();
        } else if attr.name == calls {
            let numbers = attr.as_ints()?;
            let pairs = (0_u32..).zip(numbers.as_chunks::<2>().0);
            self.calls = pairs
                .map(|(own, &[name, distance])| PythonCall {
                    name: u32::try_from(name).unwrap_or(u32::MAX),
                    caller: match u32::try_from(distance) {
                        Ok(0) => None,
                        Ok(distance) => own.checked_sub(distance),
                        Err(_) => None,
                    },
                })
                .collect();
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Drops all calls if one has no name, so that every call has one.
    pub(super) fn checked(self) -> Self {
        let named = |call: &PythonCall| (call.name as usize) < self.names.len();
        match self.calls.iter().all(named) {
            true => self,
            false => Self::default(),
        }
    }
}
