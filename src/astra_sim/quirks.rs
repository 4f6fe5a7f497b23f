//! Quirks are behaviours of ASTRA-sim that a correct model would not have. Each has a name, by which users switch it on
//! or off.
//!
//! If a quirk is on, models behave like ASTRA-sim to the nanosecond. If a quirk is off, the behaviour is *corrected*.
//! Models read the set of quirks when they are created. Each module's documentation describes the corrections that it
//! makes.

use super::AnalyticalCongestionModel;
use super::error::did_you_mean;
use chakram_base::units::{Span, UnroundedBufferShare};
use std::fmt;
use std::str::FromStr;

/// Behaviour of ASTRA-sim that a correct model would not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Quirk {
    /// The chunk sizes do not add up to the buffer size.
    Padding,
    /// Short lists of implementations omit dimensions.
    ShortList,
    /// Messages pass ports without contention.
    FreePorts,
    /// Each link between fully connected NPUs has the full bandwidth of an NPU.
    FullyConnectedLinks,
    /// Only the lowest dimension that a message crosses sets the message's time.
    FirstDimension,
    /// Every device stores a whole message before it forwards it.
    StoreAndForward,
    /// A named group is one line in any topology.
    GroupRing,
    /// Endpoints of named groups have a delay of their own.
    GroupEndpoint,
    /// `direct` reduces differently in named groups.
    GroupReductions,
    /// An NPU runs only one communication operation at a time.
    OneAtATime,
    /// Several phases share the queues for chunks.
    SharedQueue,
    /// A GB has 2^30 bytes.
    Gib,
    /// Times are truncated to whole ns.
    WholeNs,
    /// Halving-doubling performs the wrong number of reductions, or reductions of the wrong size.
    HalvingDoublingReductions,
    /// `direct` starts to gather before all packets are reduced.
    EarlyReduction,
    /// The double binary tree reduces too often.
    TreeReductions,
}

/// Name and description of a quirk.
struct QuirkText {
    quirk: Quirk,
    name: &'static str,
    original: &'static str,
    corrected: &'static str,
}

const fn build_quirk_text(
    quirk: Quirk,
    name: &'static str,
    original: &'static str,
    corrected: &'static str,
) -> QuirkText {
    QuirkText {
        quirk,
        name,
        original,
        corrected,
    }
}

/// Names and descriptions of the quirks, in the order of the enumeration.
const ABOUT: [QuirkText; 16] = [
    build_quirk_text(
        Quirk::Padding,
        "padding",
        "every chunk has floor(size / splits) bytes, also the last; small chunks are padded, shares truncated",
        "as many chunks as splits, which cover the size exactly, in equal shares",
    ),
    build_quirk_text(
        Quirk::ShortList,
        "short-list",
        "dimensions after the end of a list of implementations are left out",
        "the last name of a list applies to the dimensions after it",
    ),
    build_quirk_text(
        Quirk::FreePorts,
        "free-ports",
        "each message has the full bandwidth of an NPU, no matter how many are in flight",
        "an NPU sends and receives one message at a time in a dimension",
    ),
    build_quirk_text(
        Quirk::FullyConnectedLinks,
        "fully-connected-links",
        "the bandwidth of FullyConnected is per link, so an NPU has n - 1 times this bandwidth",
        "the bandwidth of FullyConnected is per NPU, over all its links",
    ),
    build_quirk_text(
        Quirk::FirstDimension,
        "first-dimension",
        "only the lowest dimension that a message crosses delays it",
        "latencies of all dimensions crossed add up, and the slowest sets the rate",
    ),
    build_quirk_text(
        Quirk::StoreAndForward,
        "store-and-forward",
        "each device receives a whole message before it forwards the message; one dimension only",
        "messages cut through; several dimensions are crossed in their order",
    ),
    build_quirk_text(
        Quirk::GroupRing,
        "group-ring",
        "a named group is one line, or a ring if the list has several names",
        "a named group goes through the dimensions that it spans, each with its own algorithm",
    ),
    build_quirk_text(
        Quirk::GroupEndpoint,
        "group-endpoint",
        "endpoints of named groups take 10 ns",
        "endpoints of named groups take the endpoint delay of the system file",
    ),
    build_quirk_text(
        Quirk::GroupReductions,
        "group-reductions",
        "direct in a named group also reduces the gathered data",
        "direct in a named group reduces once",
    ),
    build_quirk_text(
        Quirk::OneAtATime,
        "one-at-a-time",
        "collectives, sends, loads and stores of an NPU wait for one another",
        "collectives and sends wait only for dependencies, loads and stores also for one another",
    ),
    build_quirk_text(
        Quirk::SharedQueue,
        "shared-queue",
        "phases out and back share a dimension's queue, so late NPUs may wait for each other for ever",
        "each phase of a collective has its own queue",
    ),
    build_quirk_text(
        Quirk::Gib,
        "gib",
        "a GB of the network file is 2^30 bytes",
        "a GB is 10^9 bytes everywhere",
    ),
    build_quirk_text(
        Quirk::WholeNs,
        "whole-ns",
        "times of messages, reductions, kernels and loads are truncated to whole ns",
        "times are rounded to the nearest ps",
    ),
    build_quirk_text(
        Quirk::HalvingDoublingReductions,
        "halving-doubling-reductions",
        "halvingDoubling reduces one message too few, each at the size of the next",
        "halvingDoubling reduces all data received on the way in, at their own size",
    ),
    build_quirk_text(
        Quirk::EarlyReduction,
        "early-reduction",
        "direct begins to gather when all parts have arrived and any one of them is reduced",
        "direct begins to gather when all parts are reduced",
    ),
    build_quirk_text(
        Quirk::TreeReductions,
        "tree-reductions",
        "members of a doubleBinaryTree reduce the result again on its way down",
        "members of a doubleBinaryTree reduce only on the way up",
    ),
];

impl Quirk {
    /// Returns all quirks, in the order of the enumeration.
    pub fn all_quirks() -> impl ExactSizeIterator<Item = Self> {
        ABOUT.iter().map(|about| about.quirk)
    }

    fn quirk_text(self) -> &'static QuirkText {
        &ABOUT[self as usize]
    }

    /// Returns the name by which users switch the quirk on and off.
    pub fn quirk_name(self) -> &'static str {
        self.quirk_text().name
    }

    /// Returns a description of ASTRA-sim's behaviour.
    pub fn original_behaviour(self) -> &'static str {
        self.quirk_text().original
    }

    /// Returns a description of the corrected behaviour.
    pub fn corrected_behaviour(self) -> &'static str {
        self.quirk_text().corrected
    }

    /// Returns true if the quirk has an effect on the network `model`. Some quirks have none: the congestion-aware
    /// network always shares links and has only one dimension, and the congestion-unaware network never stores
    /// messages.
    pub fn applies_to_network_model(self, model: AnalyticalCongestionModel) -> bool {
        match self {
            Self::FreePorts | Self::FirstDimension => model == AnalyticalCongestionModel::Unaware,
            Self::StoreAndForward => model == AnalyticalCongestionModel::Aware,
            _ => true,
        }
    }
}

impl fmt::Display for Quirk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.quirk_name())
    }
}

/// The quirks that are on in a run. Every quirk outside the set is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuirkSet(u32);

impl QuirkSet {
    /// All quirks are on, so models behave like ASTRA-sim.
    pub const ALL: Self = Self((1 << ABOUT.len()) - 1);
    /// No quirk is on, so all behaviour is corrected.
    pub const NONE: Self = Self(0);

    /// Returns true if the set contains `quirk`.
    #[inline]
    pub const fn has_quirk(self, quirk: Quirk) -> bool {
        self.0 >> quirk as u8 & 1 == 1
    }

    /// Returns the set with `quirk` added.
    pub const fn with_quirk(self, quirk: Quirk) -> Self {
        Self(self.0 | 1 << quirk as u8)
    }

    /// Returns the set without `quirk`.
    pub const fn without_quirk(self, quirk: Quirk) -> Self {
        Self(self.0 & !(1 << quirk as u8))
    }

    /// Returns the quirks that are not in the set.
    pub fn quirks_not_in_set(self) -> impl Iterator<Item = Quirk> {
        Quirk::all_quirks().filter(move |quirk| !self.has_quirk(*quirk))
    }

    /// Converts ns to a time, truncated to whole ns by [`Quirk::WholeNs`].
    #[inline]
    pub(super) fn convert_ns_to_span(self, ns: f64) -> Span {
        if self.has_quirk(Quirk::WholeNs) {
            Span::from_ns(ns as u64)
        } else {
            Span::from_ns(1).scale_by(ns)
        }
    }

    /// Converts a bandwidth in the network file's GB/s to bytes per ns.
    pub(super) fn bytes_per_ns(self, gbps: f64) -> f64 {
        if self.has_quirk(Quirk::Gib) {
            gbps * f64::from(1 << 30) / 1e9
        } else {
            gbps
        }
    }
}

/// Returns the number of bytes in a share; it may be fractional.
#[inline]
pub(super) fn fractional_bytes_of_share(amount: UnroundedBufferShare) -> f64 {
    amount.bytes as f64 / amount.parts as f64
}

/// Formats the set in a form that [`FromStr`] parses. Lists either the quirks in the set or those outside it, whichever
/// are fewer.
impl fmt::Display for QuirkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mostly = self.0.count_ones() as usize * 2 >= ABOUT.len();
        f.write_str(if mostly { "all" } else { "none" })?;
        for quirk in Quirk::all_quirks().filter(|quirk| self.has_quirk(*quirk) != mostly) {
            write!(f, ",{}{quirk}", if mostly { '-' } else { '+' })?;
        }
        Ok(())
    }
}

/// Parses `all` or `none`, and then comma-separated exclusions (`-NAME`) and inclusions (`+NAME`).
impl FromStr for QuirkSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut items = text.split(',');
        let mut quirks = match items.next() {
            Some("all") => Self::ALL,
            Some("none") => Self::NONE,
            _ => return Err("expected `all` or `none` first, as in `all,-padding`".to_owned()),
        };
        for item in items {
            let (adds, name) = match (item.strip_prefix('+'), item.strip_prefix('-')) {
                (Some(name), _) => (true, name),
                (_, Some(name)) => (false, name),
                _ => {
                    return Err(format!(
                        "found `{item}`, expected +NAME or -NAME, as in `all,-padding`"
                    ));
                }
            };
            let quirk = Quirk::all_quirks().find(|quirk| quirk.quirk_name() == name);
            let names = ABOUT.map(|about| about.name);
            let quirk = quirk.ok_or_else(|| {
                let hint = did_you_mean(name, names);
                format!(
                    "no quirk is called `{name}`{hint}\n  try: one of {}",
                    names.join(", ")
                )
            })?;
            quirks = if adds {
                quirks.with_quirk(quirk)
            } else {
                quirks.without_quirk(quirk)
            };
        }
        Ok(quirks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quirk_table_is_in_enumeration_order_with_unique_names() {
        for (place, about) in ABOUT.iter().enumerate() {
            assert_eq!(about.quirk as usize, place, "{}", about.name);
        }
        let mut names = ABOUT.map(|about| about.name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn quirk_sets_are_formatted_as_they_are_parsed() {
        for text in [
            "all",
            "none",
            "all,-padding,-gib",
            "none,+padding,+whole-ns",
        ] {
            let quirks: QuirkSet = text.parse().unwrap();
            assert_eq!(quirks.to_string(), text);
        }
        let quirks: QuirkSet = "none,+gib,+padding,-gib".parse().unwrap();
        assert_eq!(quirks, QuirkSet::NONE.with_quirk(Quirk::Padding));
        assert!(quirks.has_quirk(Quirk::Padding) && !quirks.has_quirk(Quirk::Gib));
        assert_eq!(QuirkSet::ALL.quirks_not_in_set().count(), 0);
        assert_eq!(QuirkSet::NONE.quirks_not_in_set().count(), ABOUT.len());
    }

    #[test]
    fn malformed_or_unknown_quirk_sets_are_refused() {
        let error = |text: &str| text.parse::<QuirkSet>().unwrap_err();
        assert!(error("").starts_with("expected `all` or `none` first"));
        assert!(error("padding").starts_with("expected `all` or `none` first"));
        assert!(error("all,padding").contains("expected +NAME or -NAME"));
        assert!(error("all,").contains("expected +NAME or -NAME"));
        let unknown = error("all,-pading");
        assert!(unknown.contains("did you mean `padding`?"), "{unknown}");
        assert!(
            unknown.contains("free-ports, fully-connected-links"),
            "{unknown}"
        );
    }

    #[test]
    fn quirks_decide_rounding_of_times_and_unit_of_rates() {
        // 1.6786 ns is truncated if the quirk is on, and rounded to 1,679 ps if it is off.
        assert_eq!(QuirkSet::ALL.convert_ns_to_span(1.6786), Span::from_ns(1));
        assert_eq!(QuirkSet::NONE.convert_ns_to_span(1.6786), Span(1679));
        // If the quirk is on, 50 GB/s are 50 * 2^30 / 10^9 = 53.6870912 bytes per ns; otherwise they are 50.
        assert_eq!(QuirkSet::ALL.bytes_per_ns(50.0), 53.687_091_2);
        assert_eq!(QuirkSet::NONE.bytes_per_ns(50.0), 50.0);
        // The share is a third of 10 bytes.
        assert_eq!(
            fractional_bytes_of_share(UnroundedBufferShare::from_bytes(10).one_of_n_equal_parts(3)),
            10.0 / 3.0
        );
    }
}
