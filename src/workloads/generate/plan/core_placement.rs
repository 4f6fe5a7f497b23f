//! Placement of ranks on the cores of tiled accelerators, in the syntax of flags and files.

use super::words;
use std::fmt;

words! {
    /// Order in which ranks are placed on the cores of a machine of tiles.
    TileOrder {
        /// Row by row over the whole grid, so that later stages are placed in later rows.
        Line = "line",
        /// Die by die: rows of dies, and rows of cores within a die, follow a serpentine.
        Serpentine = "s_shape",
        /// Die by die: dies follow a spiral from the first corner inward, and the cores of a die
        /// follow a serpentine.
        Spiral = "spiral",
    }
}

words! {
    /// Which of their stage's cores the members of a tensor group use (`comm1` and `comm2` of PALM's Fig. 8).
    TensorNeighbours {
        /// The group's cores are consecutive.
        Near = "near",
        /// The group's cores alternate with those of other replicas: between two successive cores, there is one core of
        /// every other replica.
        Opposite = "opposite",
    }
}

/// Rule that assigns ranks to cores, or an explicit list of cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CorePlacement {
    /// The machine's own order: rank r is on NPU r.
    #[default]
    None,
    /// Ranks are placed on the machine's cores in this order.
    Order(TileOrder),
    /// Explicit cores: the entry at index r is the core of position r.
    Cores(Vec<[u32; 2]>),
}

impl CorePlacement {
    /// Appends the next word of an option: an explicit core, or an order. An order replaces all earlier words.
    pub(super) fn add_cores_or_set_order(&mut self, next: Self) {
        match (&mut *self, next) {
            (Self::Cores(all), Self::Cores(more)) => all.extend(more),
            (_, next) => *self = next,
        }
    }
}

/// Writes the placement in the syntax of flags and files, such as `s_shape` or `0:0,1:0`.
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

/// Syntax of a [`CorePlacement`], for error messages.
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
