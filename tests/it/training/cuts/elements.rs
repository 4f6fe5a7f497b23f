//! Counts the elements that each member needs and has, one by one.

use chakram::model::OperatorKind;
use std::collections::BTreeMap;

/// The kind of the tested operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TestedOperatorKind {
    Product,
    /// Windows of 3 rows, centred on the output row.
    Windows,
    /// Windows of 3 rows with stride 2.
    Strided,
    /// The maximum of two rows.
    Pool,
    Table,
}

/// The number of pixels of a row of an image.
const WIDTH: u64 = 2;

impl TestedOperatorKind {
    pub const ALL: [Self; 5] = [
        Self::Product,
        Self::Windows,
        Self::Strided,
        Self::Pool,
        Self::Table,
    ];

    pub fn has_products(self) -> bool {
        self != Self::Pool
    }

    fn is_image_operator(self) -> bool {
        !matches!(self, Self::Product | Self::Table)
    }

    /// Returns the input and output rows; in an image these are rows of pixels.
    fn input_and_output_rows(self, size: u64) -> [u64; 2] {
        match self {
            Self::Strided | Self::Pool => [2 * size, size],
            _ => [size, size],
        }
    }

    /// Returns the input and output rows as an elementwise operator counts them, one for each
    /// pixel.
    pub fn input_and_output_elementwise_rows(self, size: u64) -> [u64; 2] {
        let [before, behind] = self.input_and_output_rows(size);
        match self {
            Self::Strided | Self::Pool => [before * WIDTH, behind * WIDTH / 2],
            Self::Windows => [before * WIDTH, behind * WIDTH],
            _ => [before, behind],
        }
    }

    pub fn to_operator_kind(self, size: u64) -> OperatorKind {
        let [lines, _] = self.input_and_output_rows(size);
        match self {
            Self::Product => OperatorKind::Linear {
                rows: size,
                inputs: size,
                outputs: size,
                bias: true,
                tied: false,
            },
            Self::Windows | Self::Strided => OperatorKind::Convolution {
                inputs: size,
                outputs: size,
                size: [lines, WIDTH],
                kernel: [3, 3],
                stride: if self == Self::Strided { 2 } else { 1 },
                padding: 1,
                groups: 1,
                bias: false,
            },
            Self::Pool => OperatorKind::Pool {
                channels: size,
                size: [lines, WIDTH],
                kernel: [2, 2],
                stride: 2,
                padding: 0,
            },
            Self::Table => OperatorKind::Embedding {
                vocabulary: size,
                width: size,
                tokens: size,
            },
        }
    }

    /// Returns the weights and biases of one member.
    fn weights_per_member(self, size: u64, [_, _, n, k]: [u32; 4]) -> u64 {
        let each = |parts: u32| size / u64::from(parts);
        match self {
            Self::Product => each(n) * each(k) + each(n),
            Self::Windows | Self::Strided => each(n) * each(k) * 9,
            Self::Pool => 0,
            Self::Table => each(n) * each(k),
        }
    }
}

/// Returns the index of a member's part along b, m, n and k. Members are numbered along the axes in `order`, of which
/// the last varies fastest.
fn part_indices_of_member(member: u32, cuts: [u32; 4], order: &[usize]) -> [u32; 4] {
    let mut rest = member;
    let mut parts = [0; 4];
    for &axis in order.iter().rev() {
        parts[axis] = rest % cuts[axis];
        rest /= cuts[axis];
    }
    parts
}

/// A set of elements, with a count for each sample, row and column.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TensorElementSet([u64; 8]);

/// The largest number of rows and columns that a sample has, with 6 members.
const ROWS: u64 = 12;
const COLUMNS: u64 = 6;

impl TensorElementSet {
    fn add(&mut self, [sample, row, column]: [u64; 3]) {
        let at = (sample * ROWS + row) * COLUMNS + column;
        self.0[at as usize / 64] |= 1 << (at % 64);
    }

    fn combine_words_with(&self, other: &Self, bits: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| bits(self.0[i], other.0[i])))
    }

    fn without(&self, other: &Self) -> Self {
        self.combine_words_with(other, |one, other| one & !other)
    }

    fn and(&self, other: &Self) -> Self {
        self.combine_words_with(other, |one, other| one & other)
    }

    fn or(&self, other: &Self) -> Self {
        self.combine_words_with(other, |one, other| one | other)
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }
}

/// Returns the elements of one part, where each axis is given as its length, the number of parts,
/// and the part's index.
fn list_part_elements(axes: [(u64, u32, u32); 3]) -> TensorElementSet {
    let [samples, rows, columns] = axes.map(|(size, cuts, part)| {
        let each = size / u64::from(cuts);
        u64::from(part) * each..u64::from(part + 1) * each
    });
    let mut elements = TensorElementSet::default();
    for sample in samples {
        for row in rows.clone() {
            for column in columns.clone() {
                elements.add([sample, row, column]);
            }
        }
    }
    elements
}

/// The elements that one member is expected to receive and to reduce.
pub struct ExpectedReceivesAndReductions {
    pub moved: BTreeMap<String, u64>,
    pub sums: Vec<(String, u64, Vec<u32>)>,
}

/// Everything known about one member.
struct OneMemberInputOutputElements {
    /// The output elements of the first operator.
    first: TensorElementSet,
    /// The input elements of the tested operator: its own rows only. The next field also includes rows that its windows
    /// reach.
    own: TensorElementSet,
    reached: TensorElementSet,
    /// The output elements of the tested operator.
    gives: TensorElementSet,
    /// The input elements of the last operator.
    last: TensorElementSet,
    parts: [u32; 4],
}

fn compute_member_elements(
    kind: TestedOperatorKind,
    members: u32,
    [first, looked, last]: [[u32; 4]; 3],
    number: u32,
) -> OneMemberInputOutputElements {
    let size = u64::from(members);
    let [before, behind] = kind.input_and_output_rows(size);
    let plain = [0, 1, 2, 3];
    let order: &[usize] = match kind {
        TestedOperatorKind::Product | TestedOperatorKind::Table => &plain,
        TestedOperatorKind::Windows | TestedOperatorKind::Strided => &[0, 3, 1, 2],
        TestedOperatorKind::Pool => &[0, 2, 1],
    };
    let of = |lines: u64, cuts: [u32; 4], order: &[usize], columns: usize| {
        let parts = part_indices_of_member(number, cuts, order);
        let axis = |size, axis: usize| (size, cuts[axis], parts[axis]);
        list_part_elements([axis(size, 0), axis(lines, 1), axis(size, columns)])
    };
    let columns = if kind == TestedOperatorKind::Pool {
        2
    } else {
        3
    };
    let own = of(before, looked, order, columns);
    let gives = of(behind, looked, order, 2);
    let mut reached = own;
    if kind.is_image_operator() {
        let cut = |axis: usize| {
            (
                size,
                looked[axis],
                part_indices_of_member(number, looked, order)[axis],
            )
        };
        let each = behind / u64::from(looked[1]);
        let first = u64::from(part_indices_of_member(number, looked, order)[1]) * each;
        for row in first..first + each {
            // The windows of its output rows begin one row earlier because of padding.
            let lines = match kind {
                TestedOperatorKind::Windows => row..row + 3,
                TestedOperatorKind::Strided => 2 * row..2 * row + 3,
                _ => 2 * row + 1..2 * row + 3,
            };
            for line in lines.filter(|line| (1..=before).contains(line)) {
                let line = (before, before as u32, line as u32 - 1);
                reached = reached.or(&list_part_elements([cut(0), line, cut(columns)]));
            }
        }
    }
    OneMemberInputOutputElements {
        first: match kind {
            TestedOperatorKind::Table => TensorElementSet::default(),
            _ => of(before, first, &plain, 2),
        },
        own,
        reached,
        gives,
        last: of(behind, last, &plain, 2),
        parts: part_indices_of_member(number, looked, order),
    }
}

/// Returns the members that differ from `of` only in their parts along `axes`.
fn list_members_along_axes(
    all: &[OneMemberInputOutputElements],
    of: &OneMemberInputOutputElements,
    axes: &[usize],
) -> Vec<u32> {
    let same = |one: &OneMemberInputOutputElements| {
        (0..4).all(|axis| axes.contains(&axis) || one.parts[axis] == of.parts[axis])
    };
    let numbered = (0..).zip(all);
    numbered
        .filter(|(_, one)| same(one))
        .map(|(number, _)| number)
        .collect()
}

/// Returns `true` if the `needs` of `group`'s members are equal, disjoint shares of `whole`.
fn needs_are_equal_disjoint_shares_of_whole(
    group: &[u32],
    whole: &TensorElementSet,
    needs: impl Fn(u32) -> TensorElementSet,
) -> bool {
    let all: Vec<TensorElementSet> = group.iter().map(|&one| needs(one)).collect();
    let together = all
        .iter()
        .fold(TensorElementSet::default(), |sum, one| sum.or(one));
    let count: u64 = all.iter().map(TensorElementSet::count).sum();
    let equal = all.iter().all(|one| one.count() == all[0].count());
    equal && count == whole.count() && together == *whole
}

/// Returns the elements that each of `members` is expected to receive and to reduce.
pub fn predict_receives_and_reduces(
    kind: TestedOperatorKind,
    members: u32,
    cuts: [[u32; 4]; 3],
) -> Vec<ExpectedReceivesAndReductions> {
    let number = |one| compute_member_elements(kind, members, cuts, one);
    let all: Vec<OneMemberInputOutputElements> = (0..members).map(number).collect();
    let scatters = |axis: usize, of: fn(&OneMemberInputOutputElements) -> [TensorElementSet; 2]| {
        all.iter().all(|one| {
            let group = list_members_along_axes(&all, one, &[axis]);
            needs_are_equal_disjoint_shares_of_whole(&group, &of(one)[0], |other| {
                of(&all[other as usize])[1]
            })
        })
    };
    let scatters = [
        scatters(3, |one| [one.gives, one.last]),
        scatters(2, |one| [one.own, one.first]),
    ];
    let each = (0..members)
        .map(|number| predict_elements_received_and_reduced(kind, cuts, &all, number, scatters));
    each.collect()
}

/// Computes one member's elements. `scatters` is `true` for outputs; for input gradients, it is `true` if their
/// reduction also scatters the result.
fn predict_elements_received_and_reduced(
    kind: TestedOperatorKind,
    cuts: [[u32; 4]; 3],
    all: &[OneMemberInputOutputElements],
    number: u32,
    scatters: [bool; 2],
) -> ExpectedReceivesAndReductions {
    let me = &all[number as usize];
    let [_, looked, _] = cuts;
    let [before, behind] = match kind {
        TestedOperatorKind::Windows => [2 * WIDTH, 2 * WIDTH],
        // Of every two pixels, one remains.
        TestedOperatorKind::Strided | TestedOperatorKind::Pool => [2 * WIDTH, WIDTH],
        _ => [2, 2],
    };
    let mut moved: BTreeMap<String, u64> = BTreeMap::new();
    let mut sums = Vec::new();
    let mut add = |name: &str, elements: u64, bytes: u64| {
        if elements > 0 {
            *moved.entry(name.to_owned()).or_default() += elements * bytes;
        }
    };
    let missing = |need: &TensorElementSet, has: &TensorElementSet| need.without(has).count();
    if kind != TestedOperatorKind::Table {
        add("fwd/looked", missing(&me.own, &me.first), before);
        add("fwd/looked", missing(&me.reached, &me.own), before);
    }
    // The terms whose sum is the output are split along k.
    let terms = list_members_along_axes(all, me, &[3]);
    let mut shared_out = false;
    if terms.len() > 1 {
        shared_out = scatters[0];
        let what = if shared_out {
            "reduce-scatter"
        } else {
            "all-reduce"
        };
        let bytes = me.gives.count() * behind;
        sums.push((format!("fwd/looked.{what}"), bytes, terms));
    }
    if !shared_out {
        add("fwd/last", missing(&me.last, &me.gives), behind);
    }
    // The output's gradient returns to the members that computed its terms.
    add("bwd/looked", missing(&me.gives, &me.last), behind);
    if kind != TestedOperatorKind::Table {
        // Other members' windows reached these rows of this member.
        let of = list_members_along_axes(all, me, &[1])
            .into_iter()
            .filter(|&other| other != number);
        for other in of {
            let theirs = &all[other as usize].reached;
            add("bwd/looked", theirs.and(&me.own).count(), before);
        }
        let terms = list_members_along_axes(all, me, &[2]);
        let mut shared_out = false;
        if terms.len() > 1 && kind.has_products() {
            shared_out = scatters[1];
            let what = if shared_out {
                "reduce-scatter"
            } else {
                "all-reduce"
            };
            let bytes = me.own.count() * before;
            sums.push((format!("bwd/looked.{what}"), bytes, terms));
        }
        if !shared_out {
            add("bwd/first", missing(&me.first, &me.own), before);
        }
    }
    let weights = kind.weights_per_member(all.len() as u64, looked);
    let apart = list_members_along_axes(all, me, &[0, 1]);
    if weights > 0 && apart.len() > 1 {
        sums.push(("operators/all-reduce".to_owned(), 2 * weights, apart));
    }
    ExpectedReceivesAndReductions { moved, sums }
}
