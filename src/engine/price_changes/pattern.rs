//! Patterns that select kernels by a property and a glob, which may use `*` and `?`.

use chakram_base::config::{did_you_mean, find_most_similar_name};
use chakram_base::ids::NodeIndex;
use chakram_base::kernel_shape::{KernelShape, MemoryBoundKernelClass};
use chakram_trace::graph::Graph;
use std::collections::BTreeMap;

/// A node property that a pattern can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPatternField {
    Name,
    /// Name of an operator that called or launched the node.
    Operator,
    /// Path of the modules that called the node.
    Module,
    Class,
    Shape,
}

/// The properties, with their names in patterns.
const FIELDS: [(KernelPatternField, &str); 5] = [
    (KernelPatternField::Name, "name"),
    (KernelPatternField::Operator, "op"),
    (KernelPatternField::Module, "module"),
    (KernelPatternField::Class, "class"),
    (KernelPatternField::Shape, "shape"),
];

/// Pattern of kernels: `FIELD:GLOB`, or a glob alone, which then matches names.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelPattern {
    pub field: KernelPatternField,
    pub glob: String,
}

/// Splits a pattern into its property and its glob.
pub fn split_pattern_into_property_and_glob(pattern: &str) -> (KernelPatternField, &str) {
    let named = FIELDS.iter().find_map(|(field, word)| {
        let glob = pattern.strip_prefix(word)?.strip_prefix(':')?;
        Some((*field, glob))
    });
    named.unwrap_or((KernelPatternField::Name, pattern))
}

/// Iterates over the names of kernel classes.
fn kernel_class_names() -> impl Iterator<Item = &'static str> {
    let moving = MemoryBoundKernelClass::ALL.iter();
    ["gemm", "attention"]
        .into_iter()
        .chain(moving.map(|(_, word)| *word))
}

pub fn check_kernel_class_name(word: &str) -> Result<(), String> {
    if kernel_class_names().any(|class| class == word) {
        return Ok(());
    }
    let all: Vec<_> = kernel_class_names().collect();
    let near = find_most_similar_name(word, kernel_class_names());
    Err(format!(
        "`{word}` is not a class of kernels{}; expected one of {}",
        did_you_mean(near),
        all.join(", ")
    ))
}

/// Returns true if `glob` matches the whole `text`; `*` matches any text and `?` any character.
pub fn matches_glob(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut at, mut seen) = (0, 0);
    // Where the last `*` is in the pattern, and where the text that it matches so far ends.
    let mut star: Option<(usize, usize)> = None;
    while seen < text.len() {
        match glob.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(&one) if one == '?' || one == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((of, reach)) = &mut star else {
                    return false;
                };
                *reach += 1;
                (at, seen) = (*of + 1, *reach);
            }
        }
    }
    glob[at..].iter().all(|one| *one == '*')
}

/// The nodes of a graph that match a pattern. Tests each name, shape and path only once.
pub struct KernelPatternMatcher<'g> {
    pattern: &'g KernelPattern,
    graph: &'g Graph,
    /// One flag per name: true if the pattern matches the name. Filled only by patterns that match names.
    names: Vec<bool>,
    /// One flag per Python call: true if the pattern matches the call. Filled only by patterns that match modules.
    calls: Vec<bool>,
    shapes: BTreeMap<KernelShape, bool>,
}

impl<'g> KernelPatternMatcher<'g> {
    pub fn new(pattern: &'g KernelPattern, graph: &'g Graph) -> Self {
        let is_meant = |text: &str| matches_glob(&pattern.glob, text);
        let names = match pattern.field {
            KernelPatternField::Name | KernelPatternField::Operator => {
                let names = graph.names();
                (0..names.len() as u32)
                    .map(|i| is_meant(names.get(i)))
                    .collect()
            }
            _ => Vec::new(),
        };
        let mut calls: Vec<bool> = Vec::new();
        if pattern.field == KernelPatternField::Module {
            let stacks = graph.stacks();
            let mut paths: Vec<String> = Vec::with_capacity(stacks.calls.len());
            for (number, call) in (0..).zip(&stacks.calls) {
                let around = call.caller.map(|caller| caller as usize);
                let mut path = around.map_or(String::new(), |caller| paths[caller].clone());
                let module = stacks.module_invoked_by_call(number);
                if let Some(module) = module {
                    path += if path.is_empty() { "" } else { "/" };
                    path += module;
                }
                // If a module matches, all calls inside it match too.
                let inside = around.is_some_and(|caller| calls[caller]);
                calls.push(
                    inside || module.is_some_and(|module| is_meant(&path) || is_meant(module)),
                );
                paths.push(path);
            }
        }
        Self {
            pattern,
            graph,
            names,
            calls,
            shapes: BTreeMap::new(),
        }
    }

    pub fn matches_node(&mut self, node: NodeIndex) -> bool {
        let graph = self.graph;
        match self.pattern.field {
            KernelPatternField::Name => self.names[graph.name_index(node) as usize],
            KernelPatternField::Operator => {
                let mut caller = graph.caller_of(node);
                while let Some(at) = caller {
                    if self.names[graph.name_index(at) as usize] {
                        return true;
                    }
                    caller = graph.caller_of(at);
                }
                false
            }
            KernelPatternField::Module => graph
                .enclosing_python_call(node)
                .is_some_and(|call| self.calls[call as usize]),
            field => graph.kernel(node).is_some_and(|shape| {
                let glob = &self.pattern.glob;
                *self.shapes.entry(shape).or_insert_with(|| match field {
                    KernelPatternField::Class => matches_glob(glob, shape.class_name()),
                    _ => matches_glob(glob, &shape.to_string()),
                })
            }),
        }
    }
}
