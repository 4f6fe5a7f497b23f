//! Requests as they come in.

use super::token_content::{TokenContent, TokenPiece, TokenStream};
use chakram_base::units::Time;

/// A request that comes in.
#[derive(Clone, Debug)]
pub struct IncomingRequest {
    /// When its client sends it.
    pub at: Time,
    /// Its class.
    pub class: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// Which tokens are those of other requests.
    pub content: RequestContent,
    /// Its conversation.
    pub conversation: Option<ConversationTurn>,
    /// Its urgency, where it has one other than its class.
    pub priority: Option<i32>,
}

/// Which tokens of a request are those of others, before its number is known.
#[derive(Clone, Debug)]
pub enum RequestContent {
    /// None but a shared beginning.
    Behind(Option<(TokenStream, u32)>),
    /// As pieces say.
    Pieces(Vec<TokenPiece>),
}

impl RequestContent {
    /// The content of request `number` with a prompt of `tokens` tokens.
    pub fn of_request(self, number: u64, tokens: u32) -> TokenContent {
        match self {
            Self::Behind(shared) => TokenContent::behind(shared, number, tokens),
            Self::Pieces(pieces) => TokenContent::of(pieces),
        }
    }
}

/// A place in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationTurn {
    /// Number of the conversation.
    pub conversation: u64,
    /// The turn, from 0.
    pub turn: u32,
    /// Tokens that it begins with, and shares with other conversations.
    pub shared: Option<(TokenStream, u32)>,
}
