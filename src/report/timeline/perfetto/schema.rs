//! The messages of Perfetto's trace format that timelines use, with their field numbers.
//!
//! The format identifies fields only by number, so the field names here follow chakram's vocabulary.

/// `TracePacket`: an event, a track's description, or interned strings.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TracePacket {
    /// Nanoseconds since the start of the replay.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// `trusted_packet_sequence_id`.
    #[prost(uint32, optional, tag = "10")]
    pub sequence: Option<u32>,
    /// `track_event`.
    #[prost(message, optional, tag = "11")]
    pub event: Option<TrackEvent>,
    /// `interned_data`.
    #[prost(message, optional, tag = "12")]
    pub interned: Option<InternedData>,
    /// `sequence_flags`.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// `compressed_packets`: packets with their field numbers, compressed by deflate with a zlib header.
    #[prost(bytes = "vec", optional, tag = "50")]
    pub compressed: Option<Vec<u8>>,
    /// `track_descriptor`.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

impl TracePacket {
    /// Flag: from this packet on, earlier interned strings are invalid.
    pub const STATE_CLEARED: u32 = 1;
    /// Flag: the packet refers to interned strings.
    pub const NEEDS_STATE: u32 = 2;
}

/// `TrackEvent`: the begin or end of a slice, an instant, or the value of a counter.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackEvent {
    /// `category_iids`, not packed, because the format is proto2.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub categories: Vec<u64>,
    /// `debug_annotations`.
    #[prost(message, repeated, tag = "4")]
    pub annotations: Vec<DebugAnnotation>,
    /// `type`.
    #[prost(int32, optional, tag = "9")]
    pub kind: Option<i32>,
    /// `name_iid`.
    #[prost(uint64, optional, tag = "10")]
    pub name: Option<u64>,
    /// `track_uuid`.
    #[prost(uint64, optional, tag = "11")]
    pub track: Option<u64>,
    /// `counter_value`.
    #[prost(int64, optional, tag = "30")]
    pub counter: Option<i64>,
    /// `flow_ids`.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub leaving: Vec<u64>,
    /// `terminating_flow_ids`.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub entering: Vec<u64>,
}

impl TrackEvent {
    /// Values of [`Self::kind`].
    pub const SLICE_BEGIN: i32 = 1;
    pub const SLICE_END: i32 = 2;
    pub const INSTANT: i32 = 3;
    pub const COUNTER: i32 = 4;
}

/// `DebugAnnotation`: a fact about an event.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DebugAnnotation {
    /// `name_iid`.
    #[prost(uint64, optional, tag = "1")]
    pub name: Option<u64>,
    /// `uint_value`.
    #[prost(uint64, optional, tag = "3")]
    pub uint: Option<u64>,
    /// `string_value_iid`.
    #[prost(uint64, optional, tag = "17")]
    pub text: Option<u64>,
}

/// `InternedData`: strings and their ids.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedData {
    /// `event_categories`.
    #[prost(message, repeated, tag = "1")]
    pub categories: Vec<InternedText>,
    /// `event_names`.
    #[prost(message, repeated, tag = "2")]
    pub names: Vec<InternedText>,
    /// `debug_annotation_names`.
    #[prost(message, repeated, tag = "3")]
    pub facts: Vec<InternedText>,
    /// `debug_annotation_string_values`.
    #[prost(message, repeated, tag = "29")]
    pub texts: Vec<InternedText>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString`, which all have these fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InternedText {
    /// Id of the string, counting from 1.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The interned string.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// `TrackDescriptor`: name, parent and kind of a track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrackDescriptor {
    /// `uuid`.
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    /// `name`.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// `parent_uuid`.
    #[prost(uint64, optional, tag = "5")]
    pub parent: Option<u64>,
    /// `counter`.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// `child_ordering`.
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// `sibling_order_rank`.
    #[prost(int32, optional, tag = "12")]
    pub order: Option<i32>,
    /// `sibling_merge_behavior`.
    #[prost(int32, optional, tag = "15")]
    pub merging: Option<i32>,
}

impl TrackDescriptor {
    /// Value of `child_ordering`: children are sorted by `sibling_order_rank`.
    pub const EXPLICIT_ORDER: i32 = 3;
    /// Value of `sibling_merge_behavior`: siblings with the same name stay separate.
    pub const NEVER_MERGED: i32 = 2;
}

/// `CounterDescriptor`: the unit of a counter track.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterDescriptor {
    /// `unit`.
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
    /// `unit_name`, for units that have no number in the format.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

impl CounterDescriptor {
    /// Value of `unit`: the counter counts items.
    pub const COUNT: i32 = 2;
    /// Value of `unit`: the counter counts bytes.
    pub const BYTES: i32 = 3;
}
