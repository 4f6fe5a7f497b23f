//! Link rates by a chip's number of links: the more links a chip has, the slower each link is.
//!
//! Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator Parallelism" (2023), Table III, lists link rates
//! for chips with 1, 3 and 12 links. It also has a rate for chips without links, which reach one another through a
//! network interface. The table's unit is GB/s, although its heading says "latency". The values make sense only as
//! rates; a rate's inverse is the factor of DEAP's Eq. 2, latency = factor × size × distance. DEAP gives no rule for
//! other numbers of links, so the user must choose one.

use chakram_base::setting::EnumeratedSetting;
use chakram_base::units::Bandwidth;

/// Rule for numbers of links that fall between two entries of the table of link rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateInterpolationByLinkCount {
    /// No rule: a rate is known only for numbers of links in the table.
    None,
    /// The rate for the next larger number of links, which is a lower rate.
    Step,
    /// The logarithm of the rate is linear in the logarithm of the number of links.
    Logarithmic,
}

impl EnumeratedSetting for RateInterpolationByLinkCount {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::None, "none", "Unknown"),
        (Self::Step, "step", "Rate of the next larger number"),
        (Self::Logarithmic, "log", "Linear between logarithms"),
    ];
}

/// Link rates, in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRateByLinkCount {
    /// The rate through the network interface, for chips without links.
    pub interface: f64,
    /// Pairs (number of links, rate) in ascending order; each number of links is at least 1.
    pub links: Vec<(u32, f64)>,
    /// Rule for numbers of links between two entries of `links`.
    pub interpolation: RateInterpolationByLinkCount,
}

impl LinkRateByLinkCount {
    /// Returns DEAP's Table III, whose rates are similar to the link rates of TPU v4.
    pub fn deap_table_three(interpolation: RateInterpolationByLinkCount) -> Self {
        Self {
            interface: 1e9,
            links: vec![(1, 180e9), (3, 64e9), (12, 25e9)],
            interpolation,
        }
    }

    /// Parses a table such as `1=180GB/s,3=64GB/s,interface=1GB/s`: a rate for each number of links of a chip, and the
    /// rate of the network interface. If the rate of the interface is missing, the rate in DEAP's Table III is used.
    ///
    /// # Errors
    ///
    /// Fails if a number of links or a rate is out of range, or if a number of links is repeated.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut this = Self {
            links: Vec::new(),
            ..Self::deap_table_three(RateInterpolationByLinkCount::None)
        };
        for part in text.split(',') {
            let (number, rate) = part.split_once('=').unwrap_or((part, ""));
            let rate: Bandwidth = rate
                .trim()
                .parse()
                .map_err(|error| format!("`{part}`: {error}"))?;
            let rate = rate.bytes_per_second();
            if number.trim() == "interface" {
                this.interface = rate;
                continue;
            }
            let links = number.trim().parse::<u32>().ok().filter(|n| *n > 0);
            let expected = "expected a number of links or `interface` before each rate";
            let links = links.ok_or_else(|| format!("`{part}`: {expected}"))?;
            if this.links.iter().any(|(own, _)| *own == links) {
                return Err(format!(
                    "`{part}`: the rate for {links} links is given twice"
                ));
            }
            this.links.push((links, rate));
        }
        this.links.sort_by_key(|(links, _)| *links);
        Ok(this)
    }

    /// Returns the rate of each link of a chip with `links` links, or `None` if neither the table
    /// nor the rule gives a rate.
    pub fn rate_per_link(&self, links: u32) -> Option<f64> {
        if links == 0 {
            return Some(self.interface);
        }
        let above = self.links.iter().position(|(number, _)| *number >= links)?;
        let (more, slower) = self.links[above];
        if more == links {
            return Some(slower);
        }
        match self.interpolation {
            RateInterpolationByLinkCount::None => None,
            RateInterpolationByLinkCount::Step => Some(slower),
            RateInterpolationByLinkCount::Logarithmic => {
                let (fewer, faster) = *self.links.get(above.checked_sub(1)?)?;
                let log = |value: f64| libm::log(value);
                let along = (log(links.into()) - log(fewer.into()))
                    / (log(more.into()) - log(fewer.into()));
                Some(libm::exp(log(faster) + along * (log(slower) - log(faster))))
            }
        }
    }
}
