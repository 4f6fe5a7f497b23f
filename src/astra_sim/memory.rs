//! Computes the memory that tensors occupy over time, from the reads and writes of nodes.
//!
//! A tensor occupies memory from the start of the node that writes it to the end of the last node that reads it. A
//! tensor that is never read is never freed. A tensor that is read but was not written before, such as a weight, exists
//! from the start. At one instant, tensors are freed before others are allocated, so a tensor that replaces another
//! does not increase the peak.

use super::tensors::{RankTensors, TensorUse};
use chakram_base::units::Time;
use std::collections::BTreeMap;

mod chrome_trace;

/// A completed node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedNode<'a> {
    /// Id of the node.
    pub id: u64,
    /// Name of the node.
    pub name: &'a str,
    /// Issue time.
    pub start: Time,
    /// Completion time.
    pub end: Time,
}

/// A node's access to a tensor.
#[derive(Clone, Copy, Debug)]
struct TensorAccess<'a> {
    tensor: u32,
    by: CompletedNode<'a>,
}

/// Lifetime of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TensorLifetime {
    tensor: u32,
    bytes: u64,
    from: Time,
    /// Time at which the tensor is freed; `None` if it never is.
    to: Option<Time>,
}

/// A rank's tensors: their lifetimes and the accesses to them.
#[derive(Clone, Debug)]
pub struct TensorLifetimesAndAccesses<'a> {
    names: &'a [String],
    /// Lifetimes, in the order in which the tensors are first used.
    lives: Vec<TensorLifetime>,
    reads: Vec<TensorAccess<'a>>,
    writes: Vec<TensorAccess<'a>>,
    /// Number of bytes in memory after each instant at which this number changes.
    usage: BTreeMap<Time, u64>,
    /// Tensors that a node read before another node wrote them.
    early: Vec<u32>,
}

impl<'a> TensorLifetimesAndAccesses<'a> {
    /// Computes the lifetimes of `tensors` in a run from the rank's nodes, which must be in the order in which they
    /// completed.
    pub fn compute_lifetimes(
        tensors: &'a RankTensors,
        ran: impl IntoIterator<Item = CompletedNode<'a>>,
    ) -> Self {
        let mut memory = Self {
            names: &tensors.names,
            lives: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            usage: BTreeMap::new(),
            early: Vec::new(),
        };
        let mut known = vec![None; tensors.names.len()];
        for node in ran {
            for one in tensors.tensor_uses_of_node(node.id) {
                memory.record_use(one, node, &mut known[one.tensor as usize]);
            }
        }
        memory.sum_memory_use();
        memory
    }

    /// Records the access `one` by the node `by`. `known` is the index of the tensor's lifetime, if it has one.
    fn record_use(&mut self, one: &TensorUse, by: CompletedNode<'a>, known: &mut Option<usize>) {
        let access = TensorAccess {
            tensor: one.tensor,
            by,
        };
        let from = if one.write { by.start } else { Time::ZERO };
        let new = known.is_none();
        let life = *known.get_or_insert_with(|| {
            self.lives.push(TensorLifetime {
                tensor: one.tensor,
                bytes: one.bytes,
                from,
                to: None,
            });
            self.lives.len() - 1
        });
        if one.write {
            if !new {
                self.early.push(one.tensor);
            }
            self.writes.push(access);
        } else {
            self.lives[life].to = Some(by.end);
            self.reads.push(access);
        }
    }

    fn sum_memory_use(&mut self) {
        let mut changes: BTreeMap<Time, (u128, u128)> = BTreeMap::new();
        for life in &self.lives {
            changes.entry(life.from).or_default().0 += u128::from(life.bytes);
            if let Some(to) = life.to {
                changes.entry(to).or_default().1 += u128::from(life.bytes);
            }
        }
        let mut used = 0;
        for (at, (more, less)) in changes {
            used = used + more - less;
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            self.usage.insert(at, used);
        }
    }

    /// Returns the peak memory, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.usage.values().copied().max().unwrap_or(0)
    }

    /// Returns the tensors that a node read before another node wrote them. ASTRA-sim aborts at such a
    /// read; here the tensors exist from the start.
    pub fn tensors_read_before_written(&self) -> impl ExactSizeIterator<Item = &str> {
        self.early.iter().map(|tensor| self.tensor_name(*tensor))
    }

    fn tensor_name(&self, tensor: u32) -> &str {
        &self.names[tensor as usize]
    }
}

#[cfg(test)]
mod tests;
