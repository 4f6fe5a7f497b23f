//! Derives each member's messages, and what they wait for, from the algorithms' definitions: trees are sets that are
//! split, and exchanges are pairs. Every message waits for named senders, not for a number of receptions.

use super::naive::{MemberProgramMessage, MessageSendPrecondition};
use chakram::extend::CollectiveStagePrimitive;
use chakram::machine::CollectiveAlgorithm;

/// Returns the messages that the member `index` of a line of `n` sends, in order.
pub fn list_messages_member_sends_in_algorithm(
    algorithm: CollectiveAlgorithm,
    what: CollectiveStagePrimitive,
    n: u32,
    index: u32,
    root: u32,
) -> Vec<MemberProgramMessage> {
    use CollectiveStagePrimitive as P;
    match (algorithm, what) {
        (
            CollectiveAlgorithm::HalvingDoubling | CollectiveAlgorithm::RecursiveDoubling,
            P::ReduceScatter,
        ) => {
            // From the lowest bit upwards, the bits stand for a half of the buffer, a quarter, and so on.
            let bits = 0..n.trailing_zeros();
            let rounds = bits.map(|bit| (flip_index_bit(index, bit), (1, 2 << bit)));
            list_exchanges_in_turn(rounds.collect())
        }
        (
            CollectiveAlgorithm::HalvingDoubling | CollectiveAlgorithm::RecursiveDoubling,
            P::AllGather,
        ) => {
            let bits = (0..n.trailing_zeros()).rev();
            let rounds = bits.map(|bit| (flip_index_bit(index, bit), (1, 2 << bit)));
            list_exchanges_in_turn(rounds.collect())
        }
        (CollectiveAlgorithm::RecursiveDoubling, P::AllReduce) => {
            let rounds = (0..n.trailing_zeros()).map(|bit| (flip_index_bit(index, bit), (1, 1)));
            list_exchanges_in_turn(rounds.collect())
        }
        (CollectiveAlgorithm::Pairwise, _) => list_member_messages_of_pairwise_rounds(n, index),
        (CollectiveAlgorithm::HalvingDoubling | CollectiveAlgorithm::RecursiveDoubling, _) => {
            list_tree_messages(&build_binomial_member_tree(n), what, n, index, root)
        }
        (CollectiveAlgorithm::MemberMessageTree | CollectiveAlgorithm::DoubleBinaryTree, _) => {
            list_tree_messages(&build_in_order_tree(n), what, n, index, root)
        }
        (CollectiveAlgorithm::Ring | CollectiveAlgorithm::Direct, _) => {
            unreachable!("they are counted")
        }
        (CollectiveAlgorithm::Own(_), _) => unreachable!("there is none here"),
    }
}

/// Returns the index with this binary digit flipped.
fn flip_index_bit(index: u32, bit: u32) -> u32 {
    match index >> bit & 1 {
        0 => index + (1 << bit),
        _ => index - (1 << bit),
    }
}

/// Returns exchanges with one partner after another; each exchange waits for the messages of all
/// earlier partners.
fn list_exchanges_in_turn(rounds: Vec<(u32, (u64, u64))>) -> Vec<MemberProgramMessage> {
    let partners: Vec<u32> = rounds.iter().map(|round| round.0).collect();
    let before = |i: usize| partners[..i].to_vec();
    let rounds = rounds.into_iter().enumerate();
    rounds
        .map(|(i, (to, share))| (to, MessageSendPrecondition::From(before(i)), share))
        .collect()
}

/// Returns the messages of pairwise rounds. In round k, a member sends to the member k ahead, after the messages of
/// earlier rounds. If members form pairs, it exchanges data with the member at index XOR k instead.
fn list_member_messages_of_pairwise_rounds(n: u32, index: u32) -> Vec<MemberProgramMessage> {
    let share = (1, u64::from(n));
    if n.count_ones() == 1 {
        return list_exchanges_in_turn((1..n).map(|k| (index ^ k, share)).collect());
    }
    let behind = |k: u32| (index + n - k) % n;
    let post = |k: u32| {
        let before = (1..k).map(behind).collect();
        (
            (index + k) % n,
            MessageSendPrecondition::From(before),
            share,
        )
    };
    (1..n).map(post).collect()
}

/// A tree: the parent of every index except 0, and each index's children in sending order.
pub struct MemberMessageTree {
    pub parent: Vec<u32>,
    pub children: Vec<Vec<u32>>,
}

impl MemberMessageTree {
    fn new(n: u32) -> Self {
        Self {
            parent: vec![0; n as usize],
            children: vec![Vec::new(); n as usize],
        }
    }

    fn join(&mut self, parent: u32, child: u32) {
        self.parent[child as usize] = parent;
        self.children[parent as usize].push(child);
    }

    fn subtree_size(&self, x: u32) -> u64 {
        let below = self.children[x as usize].iter();
        1 + below.map(|&child| self.subtree_size(child)).sum::<u64>()
    }
}

/// Returns a binomial tree: the owner of 0 … n−1 splits this range at the largest power of two,
/// gives the upper part to that part's first member, and continues with the lower part.
pub fn build_binomial_member_tree(n: u32) -> MemberMessageTree {
    fn join_members_as_binomial_subtree(tree: &mut MemberMessageTree, from: u32, to: u32) {
        let mut to = to;
        while to - from > 1 {
            let mut cut = 1;
            while cut * 2 < to - from {
                cut *= 2;
            }
            tree.join(from, from + cut);
            join_members_as_binomial_subtree(tree, from + cut, to);
            to = from + cut;
        }
    }
    let mut tree = MemberMessageTree::new(n);
    join_members_as_binomial_subtree(&mut tree, 0, n);
    tree
}

/// Returns an in-order binary tree over 1 … n−1 whose top has 0 as its parent. The top of a range
/// is placed so that its lower subtree is full.
pub fn build_in_order_tree(n: u32) -> MemberMessageTree {
    /// Adds the members `low..high` as a subtree of `parent`.
    fn add_in_order_subtree(tree: &mut MemberMessageTree, parent: u32, low: u32, high: u32) {
        if low == high {
            return;
        }
        let mut full = 1;
        while full * 2 <= high - low {
            full *= 2;
        }
        let top = low + full - 1;
        tree.join(parent, top);
        add_in_order_subtree(tree, top, low, top);
        add_in_order_subtree(tree, top, top + 1, high);
    }
    let mut tree = MemberMessageTree::new(n);
    add_in_order_subtree(&mut tree, 0, 1, n);
    tree
}

fn list_tree_messages(
    tree: &MemberMessageTree,
    what: CollectiveStagePrimitive,
    n: u32,
    index: u32,
    root: u32,
) -> Vec<MemberProgramMessage> {
    use CollectiveStagePrimitive as P;
    let x = ((index + n - root) % n) as usize;
    let at = |x: u32| (x + root) % n;
    let parent = at(tree.parent[x]);
    let children: Vec<u32> = tree.children[x].iter().map(|&child| at(child)).collect();
    let share = |x: u32| match what {
        P::Gather | P::Scatter => (tree.subtree_size(x), u64::from(n)),
        _ => (1, 1),
    };
    let mut posts = Vec::new();
    if x != 0 && matches!(what, P::Reduce | P::Gather | P::AllReduce) {
        posts.push((
            parent,
            MessageSendPrecondition::From(children.clone()),
            share(x as u32),
        ));
    }
    if matches!(what, P::Broadcast | P::Scatter | P::AllReduce) {
        let mut before = match what {
            P::AllReduce => children.clone(),
            _ => Vec::new(),
        };
        if x != 0 {
            before.push(parent);
        }
        for (&child, &to) in tree.children[x].iter().zip(&children) {
            posts.push((
                to,
                MessageSendPrecondition::From(before.clone()),
                share(child),
            ));
        }
    }
    posts
}
