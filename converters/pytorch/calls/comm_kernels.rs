//! Kernels that communicate, told by their names where neither a record nor an argument says so.

use chakram_trace::format::CollectiveKind;

/// Parts of names of kernels that communicate, with what they do: a table of known libraries, which users extend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommKernels {
    added: Vec<(String, CollectiveKind)>,
}

/// Kernels of inference engines and expert-parallel libraries: vLLM's and SGLang's custom all-reduce, quick reduce,
/// TensorRT-LLM's and FlashInfer's fused all-reduces, PyTorch's symmetric memory, DeepEP's dispatch and combine.
const KNOWN: [(&str, CollectiveKind); 16] = [
    ("cross_device_reduce", CollectiveKind::AllReduce),
    ("reduce_scatter_cross_device", CollectiveKind::ReduceScatter),
    ("quickreduce::allreduce", CollectiveKind::AllReduce),
    ("oneShotAllReduce", CollectiveKind::AllReduce),
    ("twoShotAllReduce", CollectiveKind::AllReduce),
    ("allreduce_fusion_kernel", CollectiveKind::AllReduce),
    ("one_shot_all_reduce", CollectiveKind::AllReduce),
    ("two_shot_all_reduce", CollectiveKind::AllReduce),
    ("multimem_all_reduce", CollectiveKind::AllReduce),
    ("multimem_all_gather", CollectiveKind::AllGather),
    ("intranode::dispatch", CollectiveKind::AllToAll),
    ("intranode::combine", CollectiveKind::AllToAll),
    ("internode::dispatch", CollectiveKind::AllToAll),
    ("internode::combine", CollectiveKind::AllToAll),
    ("internode_ll::dispatch", CollectiveKind::AllToAll),
    ("internode_ll::combine", CollectiveKind::AllToAll),
];

/// Libraries whose kernels all communicate, by the beginning of their names.
const LIBRARIES: [&str; 4] = ["nccl", "rccl", "nvshmem", "mscclpp"];

impl CommKernels {
    /// Adds the kernels whose names contain a part: `PART=KIND`, with a kind such as `all-reduce`.
    ///
    /// # Errors
    ///
    /// Returns the error on `text`, with the kinds there are.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let all = || CollectiveKind::ALL.iter();
        let kinds = || {
            all()
                .map(|(_, name, _)| *name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (part, kind) = text
            .rsplit_once('=')
            .filter(|(part, _)| !part.is_empty())
            .ok_or_else(|| format!("`{text}` is not PART=KIND, with a kind of {}", kinds()))?;
        let known = all().find(|(_, name, _)| *name == kind);
        let (kind, ..) =
            known.ok_or_else(|| format!("`{kind}` is no kind of collective: {}", kinds()))?;
        self.added.push((part.to_owned(), *kind));
        Ok(())
    }

    /// Returns whether the kernel `name` moves data between ranks.
    pub(super) fn holds(&self, name: &str) -> bool {
        LIBRARIES.iter().any(|library| name.starts_with(library)) || self.kind(name).is_some()
    }

    /// Returns what the kernel `name` does; `None` if its name does not say.
    pub(super) fn kind(&self, name: &str) -> Option<CollectiveKind> {
        let added = self.added.iter().map(|(part, kind)| (part.as_str(), *kind));
        let mut tables = added.chain(KNOWN.iter().copied());
        if let Some((_, kind)) = tables.find(|(part, _)| name.contains(part)) {
            return Some(kind);
        }
        // `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`. Every all-to-all and message is called SendRecv.
        let plain = LIBRARIES
            .iter()
            .find_map(|library| name.strip_prefix(library))?;
        let (_, plain) = plain.split_once("Kernel_")?;
        let (operation, _) = plain.split_once('_').unwrap_or((plain, ""));
        Some(match operation {
            "AllReduce" => CollectiveKind::AllReduce,
            "ReduceScatter" => CollectiveKind::ReduceScatter,
            "AllGather" => CollectiveKind::AllGather,
            "Broadcast" => CollectiveKind::Broadcast,
            "Reduce" => CollectiveKind::Reduce,
            "AlltoAll" | "AllToAll" => CollectiveKind::AllToAll,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_kernel_does_and_users_add_to_them() {
        let mut kernels = CommKernels::default();
        let kind = |kernels: &CommKernels, name| kernels.kind(name);
        for (name, expected) in [
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
                Some(CollectiveKind::AllReduce),
            ),
            (
                "ncclKernel_ReduceScatter_RING_LL_Sum_half",
                Some(CollectiveKind::ReduceScatter),
            ),
            ("ncclDevKernel_SendRecv(ncclDevKernelArgs)", None),
            (
                "void vllm::cross_device_reduce_2stage<__half, 8>",
                Some(CollectiveKind::AllReduce),
            ),
            (
                "void deep_ep::internode_ll::combine<false>",
                Some(CollectiveKind::AllToAll),
            ),
            ("ampere_sgemm_128x64_nn", None),
        ] {
            assert_eq!(kind(&kernels, name), expected, "{name}");
        }
        assert!(kernels.holds("ncclDevKernel_SendRecv") && !kernels.holds("my_gather<4>"));
        kernels.add("my_gather=all-gather").expect("it is one");
        assert_eq!(
            kind(&kernels, "my_gather<4>"),
            Some(CollectiveKind::AllGather)
        );
        let wrong = kernels.add("my_gather=gathering").expect_err("it is none");
        assert!(
            wrong.contains("gathering") && wrong.contains("all-gather"),
            "{wrong}"
        );
        assert!(kernels.add("all-gather").is_err());
    }
}
