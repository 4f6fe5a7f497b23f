//! Defines which fields the messages of each schema generation have, and in which form. The layouts are used to detect
//! a file's generation and to find damaged records.

use super::TraceError;
use super::wire::{WireCursor, WireValue};

/// Type of a field, and how often it may occur.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldKind {
    /// A varint.
    Number,
    /// A varint that is at most this number.
    Enum(u64),
    /// A list of varints, each encoded as a separate field, as in proto2.
    Numbers,
    /// A list of varints, packed in one field, as in proto3.
    Packed,
    /// Four bytes.
    Fixed32,
    /// A list of 32-bit values, each encoded as a separate field.
    Fixed32s,
    /// A list of 32-bit values, packed in one field.
    Packed32,
    /// Eight bytes.
    Fixed64,
    /// A list of 64-bit values, packed in one field.
    Packed64,
    /// UTF-8 text.
    Text,
    /// UTF-8 text without control characters, such as Python's `repr` of a value.
    Literal,
    /// UTF-8 text; the field may occur any number of times.
    Texts,
    /// Any bytes.
    Bytes,
    /// Any bytes; the field may occur any number of times.
    Chunks,
    /// A nested message.
    Part(&'static MessageLayout),
    /// Nested messages; the field may occur any number of times.
    Parts(&'static MessageLayout),
}

/// Lists the fields of a message, and states whether field 1 is required.
#[derive(Debug)]
pub(super) struct MessageLayout {
    /// Field numbers, each with the kind of its field.
    pub fields: &'static [(u32, FieldKind)],
    /// True if field 1 is required.
    pub needs_first: bool,
}

/// Deviations of a message from a layout that it still fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageLayoutDeviations {
    /// True if the message has fields that the layout does not know.
    pub unknown: bool,
    /// True if fields are out of order, or if a list is split into several parts. Such messages are valid, but no known
    /// tool writes them.
    pub unusual: bool,
    /// Mask of the present fields: bit `n` is set if field `n` is present.
    pub present: u64,
}

/// Checks `message`, which starts at byte `offset`, against `layout`.
///
/// Fails if the message is malformed, or if field 1 is required but missing. Also fails if a field has the wrong wire
/// type, if text is not UTF-8, if a number is outside its enum, or if a singular field is repeated.
pub(super) fn check_message(
    message: &[u8],
    offset: usize,
    layout: &MessageLayout,
) -> Result<MessageLayoutDeviations, TraceError> {
    let mut fit = MessageLayoutDeviations::default();
    fit.present = record_field_deviations_from_layout(message, offset, layout, &mut fit)?;
    Ok(fit)
}

fn record_field_deviations_from_layout(
    message: &[u8],
    offset: usize,
    layout: &MessageLayout,
    fit: &mut MessageLayoutDeviations,
) -> Result<u64, TraceError> {
    let mut cursor = WireCursor::new(message, offset);
    let (mut last, mut seen) = (0, 0_u64);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        let (number, raw) = cursor.read_field()?;
        fit.unusual |= number < last;
        last = number;
        let Some((_, kind)) = layout.fields.iter().find(|(known, _)| *known == number) else {
            fit.unknown = true;
            continue;
        };
        // All field numbers of the layouts are below 64, so a 64-bit mask suffices.
        if seen >> number & 1 == 1 && kind.occurs_once() {
            return Err(TraceError::malformed_at(
                at,
                format!("field {number} occurs twice"),
            ));
        }
        seen |= 1 << number;
        if !kind.accepts_value(raw, fit)? {
            return Err(TraceError::malformed_at(
                at,
                format!("field {number} is not {}", kind.describe_kind()),
            ));
        }
    }
    if layout.needs_first && seen >> 1 & 1 == 0 {
        return Err(TraceError::malformed_at(
            offset,
            "field 1, the id, is missing",
        ));
    }
    Ok(seen)
}

impl FieldKind {
    fn occurs_once(self) -> bool {
        !matches!(
            self,
            Self::Numbers | Self::Fixed32s | Self::Texts | Self::Chunks | Self::Parts(_)
        ) && !self.is_packed()
    }

    fn is_packed(self) -> bool {
        matches!(self, Self::Packed | Self::Packed32 | Self::Packed64)
    }

    fn accepts_value(
        self,
        raw: WireValue<'_>,
        fit: &mut MessageLayoutDeviations,
    ) -> Result<bool, TraceError> {
        Ok(match (self, raw) {
            (Self::Number | Self::Numbers, WireValue::Varint(_)) => true,
            (Self::Enum(most), WireValue::Varint(value)) => value <= most,
            (Self::Fixed32 | Self::Fixed32s, WireValue::Fixed32(_)) => true,
            (Self::Fixed64, WireValue::Fixed64(_)) => true,
            (Self::Packed, WireValue::Varint(_))
            | (Self::Packed32, WireValue::Fixed32(_))
            | (Self::Packed64, WireValue::Fixed64(_)) => {
                fit.unusual = true;
                true
            }
            (Self::Packed, WireValue::Bytes(packed, at)) => {
                let mut cursor = WireCursor::new(packed, at);
                while !cursor.is_empty() {
                    cursor.read_varint()?;
                }
                true
            }
            (Self::Packed32, WireValue::Bytes(packed, _)) => packed.len().is_multiple_of(4),
            (Self::Packed64, WireValue::Bytes(packed, _)) => packed.len().is_multiple_of(8),
            (Self::Text | Self::Texts, WireValue::Bytes(text, _)) => {
                std::str::from_utf8(text).is_ok()
            }
            (Self::Literal, WireValue::Bytes(text, _)) => {
                std::str::from_utf8(text).is_ok() && text.iter().all(|byte| *byte >= b' ')
            }
            (Self::Bytes | Self::Chunks, WireValue::Bytes(..)) => true,
            (Self::Part(layout) | Self::Parts(layout), WireValue::Bytes(part, at)) => {
                record_field_deviations_from_layout(part, at, layout, fit)?;
                true
            }
            _ => false,
        })
    }

    fn describe_kind(self) -> String {
        match self {
            Self::Number | Self::Numbers => "a number".to_owned(),
            Self::Enum(most) => format!("a number of at most {most}"),
            Self::Packed | Self::Packed32 | Self::Packed64 => "a list of numbers".to_owned(),
            Self::Fixed32 | Self::Fixed32s => "a number of 32 bits".to_owned(),
            Self::Fixed64 => "a number of 64 bits".to_owned(),
            Self::Text | Self::Texts | Self::Literal => "text".to_owned(),
            Self::Bytes | Self::Chunks => "bytes".to_owned(),
            Self::Part(_) | Self::Parts(_) => "a message".to_owned(),
        }
    }
}

const fn layout_of_optional_fields(fields: &'static [(u32, FieldKind)]) -> MessageLayout {
    MessageLayout {
        fields,
        needs_first: false,
    }
}

const fn layout_with_required_id(fields: &'static [(u32, FieldKind)]) -> MessageLayout {
    MessageLayout {
        fields,
        needs_first: true,
    }
}

use FieldKind::{
    Bytes, Chunks, Enum, Fixed32, Fixed32s, Fixed64, Literal, Number, Numbers, Packed, Packed32,
    Packed64, Part, Parts, Text, Texts,
};

static VARINTS: MessageLayout = layout_of_optional_fields(&[(1, Packed)]);
static FOURS: MessageLayout = layout_of_optional_fields(&[(1, Packed32)]);
static EIGHTS: MessageLayout = layout_of_optional_fields(&[(1, Packed64)]);
static TEXTS: MessageLayout = layout_of_optional_fields(&[(1, Texts)]);
static CHUNKS: MessageLayout = layout_of_optional_fields(&[(1, Chunks)]);
static IO: MessageLayout = layout_of_optional_fields(&[(1, Text), (2, Text), (3, Text)]);

/// Layout of attribute messages in schema version 0.0.4.
pub(super) static ATTRIBUTE: MessageLayout = layout_of_optional_fields(&[
    (1, Text),
    (2, Text),
    (3, Fixed64),
    (4, Part(&EIGHTS)),
    (5, Fixed32),
    (6, Part(&FOURS)),
    (7, Number),
    (8, Part(&VARINTS)),
    (9, Number),
    (10, Part(&VARINTS)),
    (11, Number),
    (12, Part(&VARINTS)),
    (13, Number),
    (14, Part(&VARINTS)),
    (15, Number),
    (16, Part(&VARINTS)),
    (17, Number),
    (18, Part(&VARINTS)),
    (19, Fixed32),
    (20, Part(&FOURS)),
    (21, Fixed64),
    (22, Part(&EIGHTS)),
    (23, Fixed32),
    (24, Part(&FOURS)),
    (25, Fixed64),
    (26, Part(&EIGHTS)),
    (27, Number),
    (28, Part(&VARINTS)),
    (29, Text),
    (30, Part(&TEXTS)),
    (31, Bytes),
    (32, Part(&CHUNKS)),
]);

/// Layout of metadata messages in schema version 0.0.4. A `version` that begins with a line feed is really an
/// attribute, because files were written in this way in the first days of 0.0.4 ([`EARLY_METADATA`]).
pub(super) static METADATA: MessageLayout =
    layout_of_optional_fields(&[(1, Literal), (2, Parts(&ATTRIBUTE))]);

/// Layout of metadata messages in the first days of schema version 0.0.4.
pub(super) static EARLY_METADATA: MessageLayout =
    layout_of_optional_fields(&[(1, Parts(&ATTRIBUTE))]);

/// Layout of node messages in schema version 0.0.4.
pub(super) static NODE: MessageLayout = layout_of_optional_fields(&[
    (1, Number),
    (2, Text),
    (3, Enum(7)),
    (4, Packed),
    (5, Packed),
    (6, Number),
    (7, Number),
    (8, Part(&IO)),
    (9, Part(&IO)),
    (10, Parts(&ATTRIBUTE)),
]);

/// Layout of node messages in schema version 0.0.1.
pub(super) static NODE_001: MessageLayout = layout_with_required_id(&[
    (1, Number),
    (2, Text),
    (3, Enum(6)),
    (4, Numbers),
    (5, Enum(2)),
    (6, Number),
    (7, Number),
    (8, Enum(2)),
    (9, Number),
    (10, Enum(2)),
    (11, Number),
    (12, Number),
    (13, Enum(4)),
    (14, Numbers),
    (15, Number),
    (16, Number),
    (17, Number),
    (18, Number),
    (19, Number),
    (20, Number),
]);

static ATTRIBUTE_002: MessageLayout = layout_of_optional_fields(&[
    (1, Text),
    (2, Enum(5)),
    (3, Text),
    (4, Fixed32),
    (5, Number),
    (6, Bytes),
    (7, Fixed32s),
    (8, Numbers),
    (9, Chunks),
]);

static ATTRIBUTE_003A: MessageLayout = layout_of_optional_fields(&[
    (1, Text),
    (2, Enum(7)),
    (3, Text),
    (4, Number),
    (5, Fixed32),
    (6, Number),
    (7, Bytes),
    (8, Numbers),
    (9, Fixed32s),
    (10, Numbers),
    (11, Chunks),
]);

static ATTRIBUTE_003B: MessageLayout = layout_of_optional_fields(&[
    (1, Text),
    (2, Enum(9)),
    (3, Text),
    (4, Number),
    (5, Fixed32),
    (6, Number),
    (7, Number),
    (8, Bytes),
    (9, Numbers),
    (10, Fixed32s),
    (11, Numbers),
    (12, Numbers),
    (13, Chunks),
]);

macro_rules! nodes_with_texts {
    ($types:literal, $attributes:ident) => {
        layout_with_required_id(&[
            (1, Number),
            (2, Text),
            (3, Enum($types)),
            (4, Numbers),
            (5, Literal),
            (6, Literal),
            (7, Literal),
            (8, Literal),
            (9, Literal),
            (10, Literal),
            (11, Parts(&$attributes)),
        ])
    };
}

/// Layout of node messages in schema version 0.0.2.
pub(super) static NODE_002: MessageLayout = nodes_with_texts!(6, ATTRIBUTE_002);
/// Layout of node messages in schema version 0.0.3, before 5 August 2023.
pub(super) static NODE_003A: MessageLayout = nodes_with_texts!(7, ATTRIBUTE_003A);
/// Layout of node messages in schema version 0.0.3, since 5 August 2023.
pub(super) static NODE_003B: MessageLayout = nodes_with_texts!(7, ATTRIBUTE_003B);
/// Layout of metadata messages in schema version 0.0.3 before August 2023, in files that have metadata.
pub(super) static METADATA_003A: MessageLayout =
    layout_of_optional_fields(&[(1, Parts(&ATTRIBUTE_003A))]);
/// Layout of metadata messages in schema version 0.0.3 with the attributes of August 2023.
pub(super) static METADATA_003B: MessageLayout =
    layout_of_optional_fields(&[(1, Parts(&ATTRIBUTE_003B))]);
