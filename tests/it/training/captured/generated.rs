//! Reads the nodes of a generated rank.

use super::event::{ProductAttentionOrAllReduce, parse_shapes};
use chakram::trace::{CollectiveKind, GroupName, NodeView, Op, Sink, TraceError};

/// A node of a generated rank.
pub struct GeneratedNode {
    pub id: u64,
    pub name: String,
    pub event: Option<ProductAttentionOrAllReduce>,
    pub flops: u64,
    pub data: Vec<u64>,
}

#[derive(Default)]
pub struct GeneratedNodes(pub Vec<GeneratedNode>);

impl Sink for GeneratedNodes {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        let mut flops = 0;
        let event = match node.op {
            Op::Compute { flops: own, .. } if own > 0 => {
                flops = own;
                let (inputs, outputs) = (
                    parse_shapes(node.labels.inputs),
                    parse_shapes(node.labels.outputs),
                );
                match &inputs[..] {
                    [a, b] => {
                        // The quotient is (m k) (k n) / (m n) = k^2, whichever sides are contracted.
                        let elements = |shape: &[u64]| shape.iter().product::<u64>();
                        let result = elements(&outputs[0]);
                        let inner = (elements(a) * elements(b) / result).isqrt();
                        assert_eq!(inner * inner * result, elements(a) * elements(b));
                        let [one, other] = outputs[0][..] else {
                            panic!("{}", node.name);
                        };
                        Some(ProductAttentionOrAllReduce::from_matrix_product_sizes(
                            one, inner, other,
                        ))
                    }
                    all => Some(ProductAttentionOrAllReduce::Attention {
                        backward: all.len() > 3,
                        queries: all[0].clone(),
                    }),
                }
            }
            Op::Collective {
                kind, bytes, group, ..
            } => {
                assert_eq!(kind, CollectiveKind::AllReduce, "{}", node.name);
                assert_eq!(group, GroupName::World, "{}", node.name);
                Some(ProductAttentionOrAllReduce::Reduction(bytes))
            }
            Op::Message { .. } => panic!("{}", node.name),
            _ => None,
        };
        self.0.push(GeneratedNode {
            id: node.id,
            name: node.name.to_owned(),
            event,
            flops,
            data: data.to_vec(),
        });
        Ok(())
    }
}
