//! Requests before they reach an engine.

use super::token_content::{TokenContent, TokenPiece, TokenStream};
use chakram_base::units::Time;

/// A request before it reaches an engine.
#[derive(Clone, Debug)]
pub struct IncomingRequest {
    /// Time at which its client sends it.
    pub at: Time,
    /// Index of its class.
    pub class: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Describes which tokens equal those of other requests.
    pub content: RequestContent,
    /// Its turn in a conversation, if any.
    pub conversation: Option<ConversationTurn>,
    /// Its priority, if it differs from its class's.
    pub priority: Option<i32>,
}

/// Describes which tokens of a request equal those of others, before its number is known.
#[derive(Clone, Debug)]
pub enum RequestContent {
    /// No tokens except a shared beginning.
    Behind(Option<(TokenStream, u32)>),
    /// Tokens according to pieces.
    Pieces(Vec<TokenPiece>),
}

impl RequestContent {
    /// Returns the content of request `number` with a prompt of `tokens` tokens.
    pub fn of_request(self, number: u64, tokens: u32) -> TokenContent {
        match self {
            Self::Behind(shared) => TokenContent::behind(shared, number, tokens),
            Self::Pieces(pieces) => TokenContent::of(pieces),
        }
    }
}

/// A turn of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationTurn {
    /// Number of the conversation.
    pub conversation: u64,
    /// The turn, from 0.
    pub turn: u32,
    /// Tokens with which it begins and that it shares with other conversations.
    pub shared: Option<(TokenStream, u32)>,
}
