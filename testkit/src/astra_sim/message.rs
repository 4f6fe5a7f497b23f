//! Defines the protobuf messages of traces, with only the fields that ASTRA-sim reads.

/// The first message of a trace file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceFileMetadata {
    #[prost(string, tag = "1")]
    pub version: String,
}

/// A node of a trace.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TraceNodeMessage {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(int32, tag = "3")]
    pub kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    pub attr: Vec<NodeAttribute>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeAttribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(
        oneof = "NodeAttributeValue",
        tags = "7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 28, 29"
    )]
    pub value: Option<NodeAttributeValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum NodeAttributeValue {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(message, tag = "28")]
    BooleanList(BooleanList),
    #[prost(string, tag = "29")]
    Text(String),
}

/// A boolean value.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BooleanList {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}
