//! The memory that a node allocates and frees on its NPU.

use super::TraceError;
use super::attr::AttrView;
use std::fmt;

/// Purpose of a tensor, which determines its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TensorClass {
    /// Parameters, in the number format that kernels read.
    Weights,
    /// Gradients of parameters.
    Gradients,
    /// Optimizer state of the parameters, including a master copy of them.
    Optimizer,
    /// Activations that a forward pass saves for the backward pass.
    Activations,
    /// Buffers for one or a few kernels.
    Temporary,
}

/// Names of the attributes: first those for allocations, then those for frees. Each part is in the order of
/// [`TensorClass::ALL`].
pub const ATTRIBUTES: [[&str; TensorClass::COUNT]; 2] = [
    [
        "allocates.weights",
        "allocates.gradients",
        "allocates.optimizer",
        "allocates.activations",
        "allocates.temporary",
    ],
    [
        "frees.weights",
        "frees.gradients",
        "frees.optimizer",
        "frees.activations",
        "frees.temporary",
    ],
];

/// Name of the attribute for bytes that a rank stores in remote memory.
pub const REMOTE_ATTRIBUTE: &str = "allocates.remote";

impl TensorClass {
    /// Number of classes.
    pub const COUNT: usize = 5;

    /// All tensor classes with their names.
    pub const ALL: [(Self, &'static str); Self::COUNT] = [
        (Self::Weights, "weights"),
        (Self::Gradients, "gradients"),
        (Self::Optimizer, "optimizer"),
        (Self::Activations, "activations"),
        (Self::Temporary, "temporary"),
    ];
}

impl fmt::Display for TensorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

/// Bytes that a node allocates and frees, by [`TensorClass`], and bytes that it allocates in remote memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeMemoryChanges {
    /// Bytes allocated when the node is issued, for each [`TensorClass`].
    pub allocates: [u64; TensorClass::COUNT],
    /// Bytes freed when the node completes, for each [`TensorClass`].
    pub frees: [u64; TensorClass::COUNT],
    /// Bytes allocated in remote memory for the rest of the run, such as those of offloaded optimizer state. They
    /// occupy no memory on the NPU itself.
    pub remote: u64,
}

impl NodeMemoryChanges {
    /// Returns true if the node neither allocates nor frees anything.
    #[inline]
    pub fn is_none(&self) -> bool {
        let all = self.allocates.iter().chain(&self.frees);
        all.fold(self.remote, |any, bytes| any | bytes) == 0
    }

    /// Iterates over the changes that are not zero, with their attribute names.
    pub fn nonzero_changes_with_attribute_names(
        &self,
    ) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [self.allocates, self.frees].into_iter().zip(ATTRIBUTES);
        let all = all.flat_map(|(bytes, names)| names.into_iter().zip(bytes));
        let all = all.chain([(REMOTE_ATTRIBUTE, self.remote)]);
        all.filter(|(_, bytes)| *bytes > 0)
    }

    /// Stores the attribute if it is [`REMOTE_ATTRIBUTE`] or one of [`ATTRIBUTES`].
    #[inline(never)]
    pub(super) fn read_attribute(&mut self, attr: &AttrView<'_>) -> Result<(), TraceError> {
        let lists = [&mut self.allocates, &mut self.frees];
        for (list, names) in lists.into_iter().zip(ATTRIBUTES) {
            for (bytes, name) in list.iter_mut().zip(names) {
                if name.as_bytes() == attr.name {
                    *bytes = attr.as_count()?;
                    return Ok(());
                }
            }
        }
        if attr.name == REMOTE_ATTRIBUTE.as_bytes() {
            self.remote = attr.as_count()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_attributes_name_the_class_they_allocate_or_free() {
        for (i, (class, name)) in TensorClass::ALL.iter().enumerate() {
            assert_eq!(
                (*class as usize, class.to_string()),
                (i, (*name).to_owned())
            );
            assert_eq!(ATTRIBUTES[0][i], format!("allocates.{name}"));
            assert_eq!(ATTRIBUTES[1][i], format!("frees.{name}"));
        }
    }

    #[test]
    fn named_changes_omit_zero_changes() {
        let changes = NodeMemoryChanges {
            allocates: [0, 0, 0, 7, 0],
            frees: [0, 2, 0, 0, 3],
            remote: 5,
        };
        let named: Vec<_> = changes.nonzero_changes_with_attribute_names().collect();
        let wanted = [
            ("allocates.activations", 7),
            ("frees.gradients", 2),
            ("frees.temporary", 3),
            ("allocates.remote", 5),
        ];
        assert_eq!(named, wanted);
        assert!(!changes.is_none() && NodeMemoryChanges::default().is_none());
    }
}
