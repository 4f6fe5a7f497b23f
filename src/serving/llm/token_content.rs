//! Describes the tokens of requests as pieces of streams that requests may share. Computes chained hashes of their
//! blocks.

use chakram_base::random::{GAMMA, mix_bits};
use std::num::NonZeroU64;

/// Hash of a block's content and of all earlier blocks of the request.
///
/// Among ten million blocks, two different ones have the same hash with a probability of 3 in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KvBlockPrefixHash(NonZeroU64);

impl KvBlockPrefixHash {
    /// The hash before the first block.
    pub const START: Self = Self(NonZeroU64::MIN);

    /// Returns the hash with these bits; 0 becomes 1, so that an `Option<KvBlockPrefixHash>` takes no more memory than
    /// the hash itself.
    pub fn from_bits(bits: u64) -> Self {
        Self(NonZeroU64::new(bits).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the bits of the hash.
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    fn hash_with_next_block(self, next: u64) -> Self {
        Self::from_bits(mix_bits((self.to_bits() ^ next).wrapping_add(GAMMA)))
    }
}

/// A sequence of tokens, parts of which make up requests. At the same position in the same stream, tokens are always
/// equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestContentTokenStream(u64);

impl RequestContentTokenStream {
    /// Returns the stream of the tokens that belong only to request `number`.
    pub fn for_tokens_only_of_request(number: u64) -> Self {
        Self::of_kind(1, number)
    }

    /// Returns the stream of prefix `number`, which several requests share.
    pub fn from_prefix_number(number: u64) -> Self {
        Self::of_kind(2, number)
    }

    /// Returns the stream of a conversation. Each turn of a conversation begins with all earlier
    /// turns.
    pub fn from_conversation_number(number: u64) -> Self {
        Self::of_kind(3, number)
    }

    /// Returns the stream of a block in a trace that identifies blocks by hashes.
    pub fn from_trace_block_hash(hash: u64) -> Self {
        Self::of_kind(4, hash)
    }

    /// Returns the stream of the tokens after a request's last whole block, in a trace that identifies blocks by
    /// hashes.
    pub fn from_trace_remainder(number: u64) -> Self {
        Self::of_kind(5, number)
    }

    fn of_kind(kind: u64, number: u64) -> Self {
        Self(mix_bits(
            mix_bits(number.wrapping_add(GAMMA)).wrapping_add(kind.wrapping_mul(GAMMA)),
        ))
    }
}

/// Consecutive tokens of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSequencePiece {
    /// The stream.
    pub stream: RequestContentTokenStream,
    /// Position of the first token in the stream.
    pub from: u32,
    /// Number of tokens.
    pub tokens: u32,
}

/// The tokens of a request: first its prompt, then its answer. The answer continues the stream of
/// the last piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTokenContent {
    pieces: Vec<TokenSequencePiece>,
    /// Position from which all tokens belong only to this request; `u32::MAX` if there is no such position.
    own_from: u32,
}

impl RequestTokenContent {
    /// Creates content from `pieces`, all of which other requests may share.
    pub fn from_pieces(pieces: Vec<TokenSequencePiece>) -> Self {
        Self {
            pieces,
            own_from: u32::MAX,
        }
    }

    /// Creates content from `pieces`; the last piece belongs only to this request.
    pub fn from_pieces_with_unshared_last(pieces: Vec<TokenSequencePiece>) -> Self {
        let shared = pieces.split_last().map_or(&[][..], |(_, shared)| shared);
        Self {
            own_from: shared.iter().map(|piece| piece.tokens).sum(),
            pieces,
        }
    }

    /// Returns the position from which all tokens of the prompt and the answer belong only to this request. Other
    /// requests cannot find a block with such a token.
    pub fn first_unshared_position(&self) -> u32 {
        self.own_from
    }

    /// Creates the content of a request whose prompt has `tokens` tokens. The prompt begins with `shared`: a stream,
    /// and the number of tokens taken from it. All other tokens belong only to request `number`.
    pub fn from_prompt_token_count(
        shared: Option<(RequestContentTokenStream, u32)>,
        number: u64,
        tokens: u32,
    ) -> Self {
        let common = shared.map_or(0, |(_, common)| common.min(tokens));
        let mut pieces = Vec::new();
        if let Some((stream, _)) = shared.filter(|_| common > 0) {
            pieces.push(TokenSequencePiece {
                stream,
                from: 0,
                tokens: common,
            });
        }
        // Even a fully shared prompt gets a piece of the request's own stream, so that the answers of two requests
        // differ.
        pieces.push(TokenSequencePiece {
            stream: RequestContentTokenStream::for_tokens_only_of_request(number),
            from: 0,
            tokens: tokens - common,
        });
        Self::from_pieces_with_unshared_last(pieces)
    }

    /// Returns the number of prompt tokens.
    #[cfg(test)]
    fn prompt_token_count(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.tokens).sum()
    }

    /// Returns the hash of the block with `size` tokens that begins at position `from`. `before` is the hash of the
    /// previous block. Tokens after the prompt belong to the last piece's stream.
    pub fn hash_block(&self, before: KvBlockPrefixHash, from: u32, size: u32) -> KvBlockPrefixHash {
        let (mut at, end) = (0_u32, from + size);
        let mut hash = before;
        let last = self.pieces.len().saturating_sub(1);
        for (index, piece) in self.pieces.iter().enumerate() {
            let stop = match index == last {
                true => u32::MAX,
                false => at + piece.tokens,
            };
            let (low, high) = (from.max(at), end.min(stop));
            if low < high {
                let place = u64::from(piece.from + (low - at)) << 32 | u64::from(high - low);
                hash = hash
                    .hash_with_next_block(piece.stream.0)
                    .hash_with_next_block(place);
            }
            if stop >= end {
                break;
            }
            at = stop;
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_hashes_match_while_token_streams_match() {
        let system = RequestContentTokenStream::from_prefix_number(0);
        let a = RequestTokenContent::from_prompt_token_count(Some((system, 20)), 1, 40);
        let b = RequestTokenContent::from_prompt_token_count(Some((system, 20)), 2, 40);
        let chain = |content: &RequestTokenContent| -> Vec<KvBlockPrefixHash> {
            let mut hash = KvBlockPrefixHash::START;
            let blocks = (0..5).map(|block| {
                hash = content.hash_block(hash, block * 8, 8);
                hash
            });
            blocks.collect()
        };
        let (first, second) = (chain(&a), chain(&b));
        // With blocks of eight tokens, the requests share two whole blocks and half of the third
        // block.
        assert_eq!(first[..2], second[..2]);
        for k in 2..5 {
            assert_ne!(first[k], second[k]);
        }
        // Blocks with the same tokens have different hashes if the blocks before them differ.
        let c = RequestTokenContent::from_prompt_token_count(None, 1, 40);
        assert_ne!(chain(&c)[4], first[4]);
        assert_eq!(a.prompt_token_count(), 40);
        assert_eq!(
            (a.first_unshared_position(), c.first_unshared_position()),
            (20, 0)
        );
    }

    #[test]
    fn answers_go_on_in_the_last_stream() {
        let talk = RequestContentTokenStream::from_conversation_number(5);
        let turn = |tokens| {
            RequestTokenContent::from_pieces(vec![TokenSequencePiece {
                stream: talk,
                from: 0,
                tokens,
            }])
        };
        // The prompt's 10 tokens and the answer's 14 tokens are the first 24 tokens of the next
        // turn.
        assert_eq!(
            turn(10).hash_block(KvBlockPrefixHash::START, 16, 8),
            turn(40).hash_block(KvBlockPrefixHash::START, 16, 8)
        );
    }
}
