//! All-reduce over one of two mirrored trees.
//!
//! ASTRA-sim 2.x: the root has one child, which is the root of a complete binary tree of all other NPUs. NPUs are
//! numbered in this order: left subtree, node, right subtree. The root is the first NPU in one tree and the last
//! NPU in the other. Chunks alternate between the trees.

use super::{Act, Input, Move};

/// A node of the tree, and its state.
#[derive(Debug)]
pub struct Tree {
    pub bytes: u64,
    parent: Option<usize>,
    children: Vec<usize>,
    state: State,
    /// Number of children whose data has been reduced.
    reduced: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// The data of this many children has not arrived.
    Children(usize),
    /// All data has arrived; some may still need a reduction.
    Up,
    Parent,
    Down,
    Over,
}

impl Tree {
    /// Creates the node of an NPU. Returns `None` if the NPU has no position in the tree, which can happen if the
    /// number of NPUs is not a power of two.
    pub fn new(
        npu: usize,
        n: usize,
        start: usize,
        stride: usize,
        root_is_last: bool,
        bytes: u64,
    ) -> Option<Self> {
        let inner = (1 << n.ilog2()) - 1;
        let position = npu.checked_sub(start)? / stride;
        let id = |position: usize| start + position * stride;
        let (root, first) = if root_is_last { (inner, 0) } else { (0, 1) };
        let mut this = Self {
            bytes,
            parent: None,
            children: Vec::new(),
            state: State::Start,
            reduced: 0,
        };
        if position == root {
            this.children.push(id(first + inner / 2));
            return Some(this);
        }
        // Descend from the root of the complete tree to this NPU.
        let (mut parent, mut low, mut width) = (root, first, inner);
        loop {
            let middle = low + width / 2;
            if position == middle {
                this.parent = Some(id(parent));
                if width > 1 {
                    let quarter = width.div_ceil(4);
                    this.children = vec![id(middle - quarter), id(middle + quarter)];
                }
                return Some(this);
            }
            if width <= 1 {
                return None;
            }
            parent = middle;
            if position > middle {
                low = middle + 1;
            }
            width /= 2;
        }
    }

    pub fn step(&mut self, input: Input) -> Vec<Act> {
        match (self.parent, self.children.len()) {
            (Some(parent), 0) => self.leaf(parent),
            (Some(parent), _) => self.inner(parent, input),
            (None, _) => self.root(),
        }
    }

    fn over_bus(&self, reduce: bool, to_memory: bool, send_back: bool) -> Act {
        Act::Move(Move {
            bytes: self.bytes,
            reduce,
            to_memory,
            send_back,
            fast: false,
        })
    }

    fn exchange(&self, parent: usize) -> Vec<Act> {
        let bytes = self.bytes;
        vec![
            Act::Send { dst: parent, bytes },
            Act::Receive { src: parent, bytes },
        ]
    }

    fn receive_from_children(&self) -> Vec<Act> {
        let bytes = self.bytes;
        let receive = |&src: &usize| Act::Receive { src, bytes };
        self.children.iter().map(receive).collect()
    }

    fn send_to_children(&self) -> Vec<Act> {
        let bytes = self.bytes;
        let send = |&dst: &usize| Act::Send { dst, bytes };
        let mut acts: Vec<Act> = self.children.iter().map(send).collect();
        acts.push(Act::Over);
        acts
    }

    fn leaf(&mut self, parent: usize) -> Vec<Act> {
        match self.state {
            State::Start => {
                self.state = State::Up;
                vec![self.over_bus(false, true, false)]
            }
            State::Up => {
                self.state = State::Parent;
                self.exchange(parent)
            }
            State::Parent => {
                self.state = State::Over;
                vec![self.over_bus(false, false, false)]
            }
            _ => vec![Act::Over],
        }
    }

    fn inner(&mut self, parent: usize, input: Input) -> Vec<Act> {
        match (self.state, input) {
            (State::Start, _) => {
                self.state = State::Children(2);
                self.receive_from_children()
            }
            (State::Children(left), Input::Received) => {
                let last = left == 1;
                self.state = if last {
                    State::Up
                } else {
                    State::Children(left - 1)
                };
                vec![self.over_bus(true, false, last)]
            }
            (_, Input::Ready) if self.reduced < 1 => {
                self.reduced += 1;
                Vec::new()
            }
            (State::Up, _) => {
                self.state = State::Parent;
                self.exchange(parent)
            }
            (State::Parent, Input::Received) => {
                self.state = State::Down;
                vec![self.over_bus(true, false, true)]
            }
            (State::Down, _) => self.send_to_children(),
            _ => Vec::new(),
        }
    }

    fn root(&mut self) -> Vec<Act> {
        match self.state {
            State::Start => {
                self.state = State::Children(1);
                self.receive_from_children()
            }
            State::Children(_) => {
                self.state = State::Down;
                vec![self.over_bus(true, false, true)]
            }
            _ => self.send_to_children(),
        }
    }
}
