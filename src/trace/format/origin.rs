//! Origins of nodes in the captured program: caller, step and Python call stack.
//!
//! Replays do not use the origins of nodes. A node without a step or Python call inherits it from its caller.

use super::TraceError;
use super::attr::AttrView;

/// Attribute of host nodes: id of the enclosing operator or range.
pub const PARENT: &str = "parent";
/// Attribute of device nodes: id of the host node that launched the device node.
pub const LAUNCH: &str = "launch";
/// Attribute: number of the profiled step, if it differs from that of the caller.
pub const STEP: &str = "step";
/// Attribute: 1 plus the index of the innermost Python call in [`CallStacks`], or 0 for none. The writer adds the
/// attribute only if its value differs from the caller's value.
pub const STACK: &str = "stack";

/// Origin of a node in the captured program. A field is `None` if the node's record omits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCallerStepAndStack {
    /// Id of the node that called or launched this node.
    pub caller: Option<u64>,
    /// Number of the profiled step to which the node belongs.
    pub step: Option<u64>,
    /// 1 plus the index of the node's innermost Python call, or 0 for none.
    pub stack: Option<u64>,
}

impl NodeCallerStepAndStack {
    /// Stores the attribute if its value is valid; an invalid value counts as unknown.
    #[inline(never)]
    pub(super) fn read_attribute(&mut self, attr: &AttrView<'_>) {
        let field = match attr.name {
            b"parent" | b"launch" => &mut self.caller,
            b"step" => &mut self.step,
            _ => &mut self.stack,
        };
        if let Ok(value) = attr.as_count() {
            *field = Some(value);
        }
    }
}

/// Returns the step's number if `name` has the form that PyTorch's profiler gives to step ranges.
pub fn parse_step_from_profiler_range_name(name: &str) -> Option<u64> {
    name.strip_prefix("ProfilerStep#")?.parse().ok()
}

/// A call of a Python function or module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedPythonCall {
    /// Index in [`CallStacks::names`] of the function's or module's name.
    pub name: u32,
    /// Index of the enclosing call, which is always smaller than this call's index.
    pub caller: Option<u32>,
}

/// The Python calls that enclose a trace's nodes, as stored in the metadata record. Each distinct name is stored once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStacks {
    /// Names of functions and modules.
    pub names: Vec<String>,
    /// The Python calls, each after its enclosing call.
    pub calls: Vec<NestedPythonCall>,
}

/// Prefix of the names of modules in PyTorch's profiles, as in `nn.Module: Linear_3`.
const MODULE: &str = "nn.Module: ";

impl CallStacks {
    /// Attributes of the metadata record that encode the calls. The first lists the names as texts. The second contains
    /// two numbers per call: the index of the call's name, and the distance to the enclosing call (0 for none).
    pub const ATTRIBUTES: [&str; 2] = ["stack_names", "stacks"];

    /// Returns true if there are no calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the name of the function or module that a call invokes.
    pub fn name_of_call(&self, call: u32) -> &str {
        &self.names[self.calls[call as usize].name as usize]
    }

    /// Returns the name of the module that a call invokes, without the prefix, or `None` if the call invokes a
    /// function.
    pub fn module_invoked_by_call(&self, call: u32) -> Option<&str> {
        self.name_of_call(call).strip_prefix(MODULE)
    }

    /// Returns true if a range called `name` is a call of a module.
    pub fn is_module_call(name: &str) -> bool {
        name.starts_with(MODULE)
    }

    /// Iterates over the call and the calls that enclose it, innermost first.
    pub fn enclosing_calls(&self, call: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(call), |&call| self.calls[call as usize].caller)
    }

    /// Returns the innermost call that encloses both calls; each call encloses itself.
    pub fn innermost_common_call(&self, one: u32, other: u32) -> Option<u32> {
        let (mut one, mut other) = (one, other);
        // A caller has a smaller index than its callees. The loop therefore replaces whichever call has the larger
        // index with its caller.
        while one != other {
            let later = if one > other { &mut one } else { &mut other };
            *later = self.calls[*later as usize].caller?;
        }
        Some(one)
    }

    /// Returns the calls as numbers, in the encoding of the metadata record.
    pub fn encode_calls(&self) -> Vec<i64> {
        let calls = (0_i64..).zip(&self.calls);
        let numbers = calls.flat_map(|(own, call)| {
            let distance = call.caller.map_or(0, |caller| own - i64::from(caller));
            [i64::from(call.name), distance]
        });
        numbers.collect()
    }

    /// Stores an attribute of [`CallStacks::ATTRIBUTES`] and returns true; ignores other attributes and returns false.
    pub(super) fn store_known_attribute(
        &mut self,
        attr: &AttrView<'_>,
    ) -> Result<bool, TraceError> {
        let [names, calls] = Self::ATTRIBUTES.map(str::as_bytes);
        if attr.name == names {
            let texts = attr.as_texts()?.unwrap_or_default();
            self.names = texts.into_iter().map(str::to_owned).collect();
        } else if attr.name == calls {
            let numbers = attr.as_ints()?;
            let pairs = (0_u32..).zip(numbers.as_chunks::<2>().0);
            self.calls = pairs
                .map(|(own, &[name, distance])| NestedPythonCall {
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

    /// Drops all calls if any name is missing, so that every remaining call has a name.
    pub(super) fn drop_unless_all_named(self) -> Self {
        let named = |call: &NestedPythonCall| (call.name as usize) < self.names.len();
        match self.calls.iter().all(named) {
            true => self,
            false => Self::default(),
        }
    }
}
