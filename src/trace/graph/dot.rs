//! Draws graphs in DOT, the language of Graphviz.

use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, EdgeReference, NodeIndex};

/// A node in a Graphviz drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DotVertex {
    /// Lines of text in the node.
    pub lines: Vec<String>,
    /// True if the drawing shows the node in bold.
    pub marked: bool,
}

/// An edge in a Graphviz drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DotEdge {
    /// Index of the edge's source node.
    pub from: u32,
    /// Index of the edge's target node.
    pub to: u32,
    /// True if the edge is a control dependency, which is drawn as a dashed line.
    pub control: bool,
}

/// Renders `vertices` and `arrows` in DOT, in the given order.
pub fn render_dot(vertices: &[DotVertex], arrows: &[DotEdge]) -> String {
    let mut graph = DiGraph::<&DotVertex, bool>::new();
    for vertex in vertices {
        graph.add_node(vertex);
    }
    for arrow in arrows {
        let ends = [arrow.from, arrow.to].map(|i| NodeIndex::new(i as usize));
        graph.add_edge(ends[0], ends[1], arrow.control);
    }
    let node = |_: &_, (_, vertex): (NodeIndex, &&DotVertex)| {
        let lines: Vec<String> = vertex
            .lines
            .iter()
            .map(|line| escape_quoted(line))
            .collect();
        let mark = if vertex.marked { ", style=bold" } else { "" };
        format!("label=\"{}\", shape=box{mark}", lines.join("\\n"))
    };
    let edge = |_: &_, arrow: EdgeReference<'_, bool>| {
        if *arrow.weight() {
            "style=dashed".to_owned()
        } else {
            String::new()
        }
    };
    let plain = [Config::NodeNoLabel, Config::EdgeNoLabel];
    let drawn = Dot::with_attr_getters(&graph, &plain, &edge, &node);
    format!("{drawn:?}")
}

/// Escapes quotes and backslashes in `text`, and replaces control characters, so that it can be a quoted string.
fn escape_quoted(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_arrows_are_drawn_with_escaped_labels() {
        let vertex = |line: &str, marked| DotVertex {
            lines: vec![line.to_owned(), "2 us".to_owned()],
            marked,
        };
        let vertices = [vertex("a \"b\" \\c\n", true), vertex("d", false)];
        let arrow = |control| DotEdge {
            from: 0,
            to: 1,
            control,
        };
        let drawn = render_dot(&vertices, &[arrow(false), arrow(true)]);
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let expected = "digraph { \
            0 [ label=\"a \\\"b\\\" \\\\c\u{fffd}\\n2 us\", shape=box, style=bold] \
            1 [ label=\"d\\n2 us\", shape=box] \
            0 -> 1 [ ] \
            0 -> 1 [ style=dashed] }";
        assert_eq!(words(&drawn), words(expected));
    }
}
