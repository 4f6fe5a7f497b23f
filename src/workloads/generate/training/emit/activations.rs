//! Saved activations in remote memory between a forward pass and its backward pass.
//!
//! After a block's forward kernels, a rank stores the activations that the block saves, and frees their memory. In the
//! backward pass, a rank loads a block's activations one block ahead of their use, while the following block of the
//! model runs backward.

use super::memory_traffic::create_remote_access;
use super::{MEMORY_LANE, RankEmitter, WholeStepNode};
use crate::generate::schedule::{PassKind, PipelinePass};
use crate::model::LayerRole;
use chakram_trace::format::{NodeMemoryChanges, TensorClass, TraceError, TrainingPhase};

impl RankEmitter<'_, '_> {
    /// Emits the store of the activations that `layer` saves in a forward pass, if they are offloaded.
    pub(super) fn emit_activation_store(
        &mut self,
        layer: usize,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        let bytes = self.plan.offloaded_activation_bytes_of_layer(layer);
        if pass.kind != PassKind::Forward || bytes == 0 {
            return Ok(());
        }
        self.data.clear();
        self.data.extend_from_slice(&self.chain_tail);
        let id = self.emit_activation_access(true, layer, pass)?;
        self.stored_activations
            .insert((pass.micro_batch, layer), id);
        Ok(())
    }

    /// Emits the loads of offloaded activations for the first `count` layers in `order`, which lists the layers of a
    /// backward pass. `loads` collects the loads emitted so far.
    pub(super) fn emit_activation_loads(
        &mut self,
        loads: &mut Vec<Option<u64>>,
        order: impl Iterator<Item = usize>,
        count: usize,
        pass: PipelinePass,
    ) -> Result<(), TraceError> {
        for layer in order.take(count).skip(loads.len()) {
            let at = (pass.micro_batch, layer);
            let stored = match pass.kind {
                PassKind::Forward => None,
                _ => self.stored_activations.remove(&at),
            };
            let Some(stored) = stored else {
                loads.push(None);
                continue;
            };
            self.data.clear();
            self.data.extend_from_slice(&self.chain_tail);
            self.data.push(stored);
            loads.push(Some(self.emit_activation_access(false, layer, pass)?));
        }
        Ok(())
    }

    fn emit_activation_access(
        &mut self,
        store: bool,
        layer: usize,
        pass: PipelinePass,
    ) -> Result<u64, TraceError> {
        let plan = self.plan;
        let name = &plan.model.layers[layer].name;
        let bytes = plan.offloaded_activation_bytes_of_layer(layer);
        let mut memory = NodeMemoryChanges::default();
        let (word, phase, changes) = if store {
            let frees = &mut memory.frees;
            ("fwd/activations/store", TrainingPhase::Forward, frees)
        } else {
            let allocates = &mut memory.allocates;
            ("bwd/activations/load", TrainingPhase::Backward, allocates)
        };
        changes[TensorClass::Activations as usize] = bytes;
        self.emit_node(WholeStepNode {
            name: format_args!("mb{}/{name}/{word}", pass.micro_batch),
            op: create_remote_access(store, bytes, false),
            lane: Some(MEMORY_LANE),
            phase,
            pass: Some(pass),
            layer: Some(layer as u32),
            memory,
        })
    }
}

impl super::TrainingGenerator {
    /// Number of bytes of the activations of `layer` that are in remote memory between its passes.
    pub(in crate::generate::training) fn offloaded_activation_bytes_of_layer(
        &self,
        layer: usize,
    ) -> u64 {
        let offloads = self.plan.offload_activations
            && self.plan.has_training()
            && self.model.layers[layer].role == LayerRole::Block;
        match offloads {
            true => self.lowered_layer(layer).keeps,
            false => 0,
        }
    }
}
