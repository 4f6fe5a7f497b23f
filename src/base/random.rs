//! Random numbers that are the same on every platform: SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom
//! Number Generators", 2014), which mixes the bits of successive counter values.

/// Step of the counter: 2^64 divided by the golden ratio, rounded to an odd number.
pub const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of `z`, so that successive values of a counter produce independent random numbers.
pub fn mix_bits(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Advances the counter `state` and returns 64 random bits.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GAMMA);
    mix_bits(*state)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs for the seed 1234567, as published for other implementations of SplitMix64.
    #[test]
    fn split_mix_outputs_match_published_values() {
        let mut state = 1_234_567;
        let found = [(); 3].map(|()| split_mix(&mut state));
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(found, expected);
    }
}
