//! Describes requests that have not reached an engine yet.

use super::token_content::{RequestContentTokenStream, RequestTokenContent, TokenSequencePiece};
use chakram_base::units::Time;

/// A request before it reaches an engine.
#[derive(Clone, Debug)]
pub struct IncomingRequest {
    /// Time at which the client sends the request.
    pub at: Time,
    /// Index of the request's class.
    pub class: u32,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of answer tokens.
    pub output: u32,
    /// The tokens that the request shares with others.
    pub content: PromptTokensSharedWithOthers,
    /// The request's turn in a conversation, if it belongs to one.
    pub conversation: Option<TurnWithCrossConversationPrefix>,
    /// Priority, if it differs from the class's priority.
    pub priority: Option<i32>,
}

/// The tokens that a request shares with others, before its number is known.
#[derive(Clone, Debug)]
pub enum PromptTokensSharedWithOthers {
    /// The prompt begins with this many tokens from a shared stream; with `None`, it shares none. All other tokens
    /// belong only to the request.
    Behind(Option<(RequestContentTokenStream, u32)>),
    /// The prompt consists of these pieces of token streams.
    Pieces(Vec<TokenSequencePiece>),
    /// The prompt consists of these pieces; the last piece and the answer belong only to the request.
    OwnEnd(Vec<TokenSequencePiece>),
}

impl PromptTokensSharedWithOthers {
    /// Returns the content of request `number` with a prompt of `tokens` tokens.
    pub fn token_content_of_request(self, number: u64, tokens: u32) -> RequestTokenContent {
        match self {
            Self::Behind(shared) => {
                RequestTokenContent::from_prompt_token_count(shared, number, tokens)
            }
            Self::Pieces(pieces) => RequestTokenContent::from_pieces(pieces),
            Self::OwnEnd(pieces) => RequestTokenContent::from_pieces_with_unshared_last(pieces),
        }
    }
}

/// A turn of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnWithCrossConversationPrefix {
    /// Number of the conversation.
    pub conversation: u64,
    /// Index of the turn in the conversation, counting from 0.
    pub turn: u32,
    /// Shared beginning of the conversation: a token stream, and the number of tokens from it. Other conversations may
    /// begin with the same tokens.
    pub shared: Option<(RequestContentTokenStream, u32)>,
}
