//! Compares the compiled schema that the build reads with `proto/et_def.proto`.
//!
//! This compiler knows the part of proto3 that the schema uses: messages with fields, `repeated`, one `oneof`, and
//! enums. Any other construct fails the test.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, OneofDescriptorProto,
};
use std::path::Path;

#[test]
fn the_compiled_schema_is_that_of_the_proto_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let source = std::fs::read_to_string(folder.join("et_def.proto")).unwrap();
    let compiled = FileDescriptorSet {
        file: vec![RemainingSchemaTokens::tokenize(&source).parse_file()],
    };
    let path = folder.join("et_def.bin");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, compiled.encode_to_vec()).unwrap();
    }
    let committed = std::fs::read(&path).unwrap();
    let committed = FileDescriptorSet::decode(committed.as_slice()).unwrap();
    assert_eq!(
        committed, compiled,
        "proto/et_def.bin is not what proto/et_def.proto says; BLESS=1 cargo test schema writes it"
    );
}

/// The remaining tokens of a schema, in reverse order.
struct RemainingSchemaTokens<'a>(Vec<&'a str>);

impl<'a> RemainingSchemaTokens<'a> {
    fn tokenize(source: &'a str) -> Self {
        let mut tokens = Vec::new();
        for line in source.lines() {
            let mut rest = line.split_once("//").map_or(line, |(code, _)| code).trim();
            while !rest.is_empty() {
                let word = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
                let length = rest.find(|c| !word(c)).unwrap_or(rest.len()).max(1);
                tokens.push(&rest[..length]);
                rest = rest[length..].trim_start();
            }
        }
        tokens.reverse();
        Self(tokens)
    }

    fn next(&mut self) -> &'a str {
        self.0.pop().expect("the schema ends in the middle")
    }

    fn expect(&mut self, token: &str) {
        assert_eq!(self.next(), token);
    }

    /// Reads `= number ;`.
    fn parse_equals_number_semicolon(&mut self) -> i32 {
        self.expect("=");
        let number = self.next().parse().unwrap();
        self.expect(";");
        number
    }

    fn parse_file(mut self) -> FileDescriptorProto {
        let mut file = FileDescriptorProto {
            name: Some("et_def.proto".to_owned()),
            syntax: Some("proto3".to_owned()),
            ..FileDescriptorProto::default()
        };
        while let Some(token) = self.0.pop() {
            match token {
                "syntax" => {
                    for sign in ["=", "\"proto3\"", ";"] {
                        self.expect(sign)
                    }
                }
                "package" => {
                    file.package = Some(self.next().to_owned());
                    self.expect(";");
                }
                "enum" => file.enum_type.push(self.parse_enum()),
                "message" => file.message_type.push(self.parse_message()),
                other => panic!("`{other}` is not known here"),
            }
        }
        let package = file.package.clone().unwrap_or_default();
        let enums: Vec<_> = file.enum_type.iter().map(|e| e.name().to_owned()).collect();
        for field in file.message_type.iter_mut().flat_map(|m| &mut m.field) {
            let Some(name) = field.type_name.as_mut() else {
                continue;
            };
            let kind = match enums.contains(name) {
                true => Type::Enum,
                false => Type::Message,
            };
            *name = format!(".{package}.{name}");
            field.set_type(kind);
        }
        file
    }

    fn parse_enum(&mut self) -> EnumDescriptorProto {
        let name = Some(self.next().to_owned());
        let mut value = Vec::new();
        self.expect("{");
        loop {
            match self.next() {
                "}" => break,
                name => value.push(EnumValueDescriptorProto {
                    name: Some(name.to_owned()),
                    number: Some(self.parse_equals_number_semicolon()),
                    options: None,
                }),
            }
        }
        EnumDescriptorProto {
            name,
            value,
            ..EnumDescriptorProto::default()
        }
    }

    fn parse_message(&mut self) -> DescriptorProto {
        let mut message = DescriptorProto {
            name: Some(self.next().to_owned()),
            ..DescriptorProto::default()
        };
        self.expect("{");
        let mut oneof = None;
        loop {
            match self.next() {
                "}" if oneof.is_some() => oneof = None,
                "}" => return message,
                "oneof" => {
                    oneof = Some(message.oneof_decl.len() as i32);
                    let name = Some(self.next().to_owned());
                    let options = None;
                    message
                        .oneof_decl
                        .push(OneofDescriptorProto { name, options });
                    self.expect("{");
                }
                "repeated" => {
                    let kind = self.next();
                    message
                        .field
                        .push(self.parse_field(Label::Repeated, kind, oneof));
                }
                kind => message
                    .field
                    .push(self.parse_field(Label::Optional, kind, oneof)),
            }
        }
    }

    fn parse_field(
        &mut self,
        label: Label,
        kind: &str,
        oneof_index: Option<i32>,
    ) -> FieldDescriptorProto {
        let name = self.next().to_owned();
        let json_name = Some(camel_case(&name));
        let mut field = FieldDescriptorProto {
            name: Some(name),
            json_name,
            number: Some(self.parse_equals_number_semicolon()),
            oneof_index,
            ..FieldDescriptorProto::default()
        };
        field.set_label(label);
        match parse_scalar_type(kind) {
            Some(scalar) => field.set_type(scalar),
            None => field.type_name = Some(kind.to_owned()),
        }
        field
    }
}

fn parse_scalar_type(kind: &str) -> Option<Type> {
    Some(match kind {
        "double" => Type::Double,
        "float" => Type::Float,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "uint32" => Type::Uint32,
        "uint64" => Type::Uint64,
        "sint32" => Type::Sint32,
        "sint64" => Type::Sint64,
        "fixed32" => Type::Fixed32,
        "fixed64" => Type::Fixed64,
        "sfixed32" => Type::Sfixed32,
        "sfixed64" => Type::Sfixed64,
        "bool" => Type::Bool,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        _ => return None,
    })
}

/// Returns the name in JSON: `startTimeMicros` for `start_time_micros`.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (head, tail) = word.split_at(word.len().min(1));
        name + &head.to_uppercase() + tail
    })
}
