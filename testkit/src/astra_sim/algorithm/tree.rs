//! All-reduce over one of two mirrored trees.
//!
//! As in ASTRA-sim 2.x, the root has one child. This child is the root of a complete binary tree with all other NPUs.
//! NPU numbers ascend in the order left subtree, node, right subtree. The root is the first NPU in one tree, and the
//! last NPU in the other. Chunks alternate between the trees.

use super::{AlgorithmAction, AlgorithmEvent, MemoryMove};

/// One NPU's node of the tree, and its state.
#[derive(Debug)]
pub struct TreeAlgorithm {
    pub bytes: u64,
    parent: Option<usize>,
    children: Vec<usize>,
    state: TreeState,
    /// Number of children with reduced data so far.
    reduced: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TreeState {
    Start,
    /// Number of children whose data the NPU waits for.
    Children(usize),
    /// The data of all children has arrived; some of it may still need a reduction.
    Up,
    Parent,
    Down,
    Over,
}

impl TreeAlgorithm {
    /// Creates an NPU's node of the tree. Returns `None` if the tree has no place for the NPU, which can happen if the
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
            state: TreeState::Start,
            reduced: 0,
        };
        if position == root {
            this.children.push(id(first + inner / 2));
            return Some(this);
        }
        // Descend from the root of the complete tree to the node of this NPU.
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

    pub fn actions_after_event(&mut self, input: AlgorithmEvent) -> Vec<AlgorithmAction> {
        match (self.parent, self.children.len()) {
            (Some(parent), 0) => self.step_leaf(parent),
            (Some(parent), _) => self.step_inner(parent, input),
            (None, _) => self.step_root(),
        }
    }

    fn bus_move_action(&self, reduce: bool, to_memory: bool, send_back: bool) -> AlgorithmAction {
        AlgorithmAction::Move(MemoryMove {
            bytes: self.bytes,
            reduce,
            to_memory,
            send_back,
            fast: false,
        })
    }

    fn parent_exchange_actions(&self, parent: usize) -> Vec<AlgorithmAction> {
        let bytes = self.bytes;
        vec![
            AlgorithmAction::Send { dst: parent, bytes },
            AlgorithmAction::Receive { src: parent, bytes },
        ]
    }

    fn child_receive_actions(&self) -> Vec<AlgorithmAction> {
        let bytes = self.bytes;
        let receive = |&src: &usize| AlgorithmAction::Receive { src, bytes };
        self.children.iter().map(receive).collect()
    }

    fn child_send_actions(&self) -> Vec<AlgorithmAction> {
        let bytes = self.bytes;
        let send = |&dst: &usize| AlgorithmAction::Send { dst, bytes };
        let mut acts: Vec<AlgorithmAction> = self.children.iter().map(send).collect();
        acts.push(AlgorithmAction::Over);
        acts
    }

    fn step_leaf(&mut self, parent: usize) -> Vec<AlgorithmAction> {
        match self.state {
            TreeState::Start => {
                self.state = TreeState::Up;
                vec![self.bus_move_action(false, true, false)]
            }
            TreeState::Up => {
                self.state = TreeState::Parent;
                self.parent_exchange_actions(parent)
            }
            TreeState::Parent => {
                self.state = TreeState::Over;
                vec![self.bus_move_action(false, false, false)]
            }
            _ => vec![AlgorithmAction::Over],
        }
    }

    fn step_inner(&mut self, parent: usize, input: AlgorithmEvent) -> Vec<AlgorithmAction> {
        match (self.state, input) {
            (TreeState::Start, _) => {
                self.state = TreeState::Children(2);
                self.child_receive_actions()
            }
            (TreeState::Children(left), AlgorithmEvent::Received) => {
                let last = left == 1;
                self.state = if last {
                    TreeState::Up
                } else {
                    TreeState::Children(left - 1)
                };
                vec![self.bus_move_action(true, false, last)]
            }
            (_, AlgorithmEvent::Ready) if self.reduced < 1 => {
                self.reduced += 1;
                Vec::new()
            }
            (TreeState::Up, _) => {
                self.state = TreeState::Parent;
                self.parent_exchange_actions(parent)
            }
            (TreeState::Parent, AlgorithmEvent::Received) => {
                self.state = TreeState::Down;
                vec![self.bus_move_action(true, false, true)]
            }
            (TreeState::Down, _) => self.child_send_actions(),
            _ => Vec::new(),
        }
    }

    fn step_root(&mut self) -> Vec<AlgorithmAction> {
        match self.state {
            TreeState::Start => {
                self.state = TreeState::Children(1);
                self.child_receive_actions()
            }
            TreeState::Children(_) => {
                self.state = TreeState::Down;
                vec![self.bus_move_action(true, false, true)]
            }
            _ => self.child_send_actions(),
        }
    }
}
