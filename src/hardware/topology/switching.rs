//! Modes in which devices between links forward messages.

use chakram_base::units::{Bytes, UnroundedBufferShare};
use std::fmt;

/// Forwarding mode of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchingMode {
    /// A device forwards a message once the first segment has arrived, or the whole message if it is shorter. With an
    /// empty segment (the ideal case), a device adds no delay.
    CutThrough {
        /// Bytes that must arrive before a message is forwarded.
        segment: Bytes,
    },
    /// A device forwards a message once all of it has arrived.
    StoreAndForward,
}

impl SwitchingMode {
    /// Cut-through without delay at devices.
    pub const IDEAL: Self = Self::CutThrough { segment: Bytes(0) };

    /// Returns the part of a message of `amount` that must arrive before the message is forwarded.
    #[inline]
    pub fn first_segment(self, amount: UnroundedBufferShare) -> UnroundedBufferShare {
        match self.split_off_first_segment(amount) {
            Some((segment, _)) => segment,
            None => amount,
        }
    }

    /// Returns the remainder of the message after [`Self::first_segment`].
    #[inline]
    pub fn remainder_after_first_segment(
        self,
        amount: UnroundedBufferShare,
    ) -> UnroundedBufferShare {
        self.split_off_first_segment(amount)
            .map_or(UnroundedBufferShare::from_bytes(0), |(_, rest)| {
                amount.same_fraction_of_other_buffer(rest)
            })
    }

    /// Returns the first segment, and the size of the remainder in units of 1 / `parts` bytes. Returns `None` if there
    /// is no remainder.
    fn split_off_first_segment(
        self,
        amount: UnroundedBufferShare,
    ) -> Option<(UnroundedBufferShare, u64)> {
        let Self::CutThrough { segment } = self else {
            return None;
        };
        // A share is bytes / parts, so the segment is compared in units of 1 / parts of a byte.
        let segments = segment.0.checked_mul(amount.parts)?;
        let rest = amount.bytes.checked_sub(segments)?;
        (rest > 0).then_some((UnroundedBufferShare::from_bytes(segment.0), rest))
    }
}

/// Formats as `cut-through`, `cut-through by 4096 B` or `store-and-forward`.
impl fmt::Display for SwitchingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            &Self::IDEAL => f.pad("cut-through"),
            Self::CutThrough { segment } => f.pad(&format!("cut-through by {} B", segment.0)),
            Self::StoreAndForward => f.pad("store-and-forward"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switching_splits_a_message_into_first_segment_and_rest() {
        let by = |segment| SwitchingMode::CutThrough {
            segment: Bytes(segment),
        };
        let cut = |switching: SwitchingMode, amount: UnroundedBufferShare| {
            let (segment, rest) = (
                switching.first_segment(amount),
                switching.remainder_after_first_segment(amount),
            );
            (segment, (rest.bytes, rest.parts))
        };
        let whole = UnroundedBufferShare::from_bytes;
        assert_eq!(cut(SwitchingMode::IDEAL, whole(7)), (whole(0), (7, 1)));
        assert_eq!(cut(by(3), whole(7)), (whole(3), (4, 1)));
        assert_eq!(cut(by(7), whole(7)), (whole(7), (0, 1)));
        assert_eq!(cut(by(9), whole(7)), (whole(7), (0, 1)));
        assert_eq!(
            cut(SwitchingMode::StoreAndForward, whole(7)),
            (whole(7), (0, 1))
        );
        // 7/2 = 3.5 B are split into 3 B and 0.5 B; (1, 2) stands for 1/2 B.
        assert_eq!(
            cut(by(3), whole(7).one_of_n_equal_parts(2)),
            (whole(3), (1, 2))
        );
        assert_eq!(
            cut(by(u64::MAX), whole(7).one_of_n_equal_parts(2)),
            (whole(7).one_of_n_equal_parts(2), (0, 1))
        );
        assert_eq!(by(4096).to_string(), "cut-through by 4096 B");
    }
}
