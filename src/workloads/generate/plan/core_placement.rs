//! Cores of ranks on tiled accelerators, as flags and files say them.

use super::words;
use std::fmt;

words! {
    /// Order in which the cores of a machine of tiles are taken.
    TileOrder {
        /// Row by row over the whole grid, so that stages lie one above the other.
        Line = "line",
        /// Die by die, rows of dies to and fro, and rows of cores within a die likewise.
        Serpentine = "s_shape",
        /// Die by die from the first corner around the edge and inwards.
        Spiral = "spiral",
    }
}

words! {
    /// Cores of a tensor group among those of its stage (`comm1` and `comm2` of PALM's Fig. 8).
    TensorNeighbours {
        /// One after another.
        Near = "near",
        /// One of each replica between any two.
        Opposite = "opposite",
    }
}

/// Cores of ranks: an order that a machine of tiles makes places of, or places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorePlacement {
    /// The machine's own, rank by rank.
    #[default]
    None,
    /// In this order.
    Order(TileOrder),
    /// The core at each position.
    Cores(Vec<[u32; 2]>),
}

impl CorePlacement {
    /// Puts what the next word of an option says behind it: cores one by one, or an order in place of all.
    pub(super) fn add(&mut self, next: Self) {
        match (&mut *self, next) {
            (Self::Cores(all), Self::Cores(more)) => all.extend(more),
            (_, next) => *self = next,
        }
    }
}

/// As flags and files say it: `s_shape`, `0:0,1:0`.
impl fmt::Display for CorePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Order(order) => write!(f, "{order}"),
            Self::Cores(cores) => {
                let shown = cores.iter().take(8).map(|[x, y]| format!("{x}:{y}"));
                let more = if cores.len() > 8 { ",…" } else { "" };
                write!(f, "{}{more}", shown.collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Form of the text of a [`CorePlacement`], for messages.
pub const EXAMPLE: &str = "line, s_shape, spiral, or cores x:y with commas, one for each position";

impl std::str::FromStr for CorePlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((order, _)) = TileOrder::ALL.iter().find(|(_, word)| *word == text.trim()) {
            return Ok(Self::Order(*order));
        }
        let core = |word: &str| {
            let (x, y) = word.trim().split_once(':')?;
            Some([x.parse().ok()?, y.parse().ok()?])
        };
        let cores: Option<Vec<[u32; 2]>> = text.split(',').map(core).collect();
        cores
            .map(Self::Cores)
            .ok_or_else(|| format!("expected {EXAMPLE}"))
    }
}
