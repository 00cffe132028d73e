//! The fields of messages, from the attributes that prost generates: `#[prost(message, optional, tag = "1")]`.

use protox::prost_reflect::prost_types::{
    DescriptorProto, FieldDescriptorProto, FieldOptions, MessageOptions, OneofDescriptorProto,
    field_descriptor_proto::{Label, Type as FieldType},
};
use syn::{Attribute, Expr, Field, GenericArgument, Lit, Meta, PathArguments, Token, Type, punctuated::Punctuated};

use super::source::{Message, Source, plain};
use crate::services::snake_case;

/// The descriptor of a message, without its nested types, other than the entries of its maps.
///
/// # Errors
/// When a field cannot be described.
pub(crate) fn describe(source: &Source, name: &str, message: &Message) -> Result<DescriptorProto, String> {
    let short = name.rsplit('.').next().unwrap_or(name).to_owned();
    let mut described = Described {
        source,
        message,
        name,
        descriptor: DescriptorProto { name: Some(short), ..Default::default() },
        optional: Vec::new(),
    };
    for fields in message.structs.iter().map(|item| &item.fields) {
        for field in fields {
            described.add(field).map_err(|reason| format!("{name}.{}: {reason}", ident(field)))?;
        }
    }
    Ok(described.finish())
}

struct Described<'a> {
    source: &'a Source,
    message: &'a Message,
    name: &'a str,
    descriptor: DescriptorProto,
    /// Indices of fields with a oneof of their own, which only says whether they are present.
    optional: Vec<usize>,
}

impl Described<'_> {
    fn add(&mut self, field: &Field) -> Result<(), String> {
        let attribute = FieldAttribute::parse(&field.attrs)?;
        let name = ident(field);
        match &attribute.kind {
            Kind::Oneof(path) => self.add_oneof(&name, path),
            _ if self.is_known(attribute.number()?) => Ok(()),
            Kind::Map(value) => self.add_map(name, attribute.number()?, value, &field.ty),
            kind => {
                let mut described = self.typed(name, kind, &field.ty, &self.message.module)?;
                described.label = Some(attribute.cardinality.label().into());
                // A message without a value is absent anyway.
                let is_optional = attribute.cardinality == Cardinality::Optional
                    && described.r#type != Some(FieldType::Message.into());
                described.proto3_optional = is_optional.then_some(true);
                described.options = options(&field.attrs);
                described.number = Some(attribute.number()?);
                if is_optional {
                    self.optional.push(self.descriptor.field.len());
                }
                self.descriptor.field.push(described);
                Ok(())
            }
        }
    }

    /// Whether the message has a field with this number: ours repeat the published ones, some with another Rust type.
    fn is_known(&self, number: i32) -> bool {
        self.descriptor.field.iter().any(|field| field.number == Some(number))
    }

    fn add_oneof(&mut self, name: &str, path: &str) -> Result<(), String> {
        let (module, items) = self.source.oneof(&self.message.module, &parse_path(path)?)?;
        let declared = &mut self.descriptor.oneof_decl;
        let index = declared.iter().position(|oneof| oneof.name.as_deref() == Some(name)).unwrap_or_else(|| {
            declared.push(OneofDescriptorProto { name: Some(name.to_owned()), options: None });
            declared.len() - 1
        });
        let index = i32::try_from(index).map_err(|error| error.to_string())?;
        for variant in items.iter().flat_map(|item| &item.variants) {
            let attribute = FieldAttribute::parse(&variant.attrs)?;
            if self.is_known(attribute.number()?) {
                continue;
            }
            let value = variant.fields.iter().next().ok_or("a variant of a oneof has no type")?;
            let name = snake_case(&plain(&variant.ident));
            let mut described = self.typed(name, &attribute.kind, &value.ty, &module)?;
            described.label = Some(Label::Optional.into());
            described.oneof_index = Some(index);
            described.options = options(&variant.attrs);
            described.number = Some(attribute.number()?);
            self.descriptor.field.push(described);
        }
        Ok(())
    }

    /// A map is a list of entries, each a message.
    fn add_map(&mut self, name: String, number: i32, (key, value): &(Kind, Kind), ty: &Type) -> Result<(), String> {
        let module = &self.message.module;
        let (key_type, value_type) = match generics(ty).as_slice() {
            [key, value] => (*key, *value),
            _ => return Err("the type of a map does not have two parameters".to_owned()),
        };
        let mut fields = [
            self.typed("key".to_owned(), key, key_type, module)?,
            self.typed("value".to_owned(), value, value_type, module)?,
        ];
        for (number, field) in (1_i32..).zip(&mut fields) {
            field.number = Some(number);
            field.label = Some(Label::Optional.into());
        }
        let entry = format!("{}Entry", camel_case(&name));
        let field = FieldDescriptorProto {
            name: Some(name),
            number: Some(number),
            label: Some(Label::Repeated.into()),
            r#type: Some(FieldType::Message.into()),
            type_name: Some(format!(".{}.{entry}", self.name)),
            ..Default::default()
        };
        self.descriptor.field.push(field);
        self.descriptor.nested_type.push(DescriptorProto {
            name: Some(entry),
            field: fields.into(),
            options: Some(MessageOptions { map_entry: Some(true), ..Default::default() }),
            ..Default::default()
        });
        Ok(())
    }

    /// A field with its type, and nothing else.
    fn typed(&self, name: String, kind: &Kind, ty: &Type, module: &[String]) -> Result<FieldDescriptorProto, String> {
        let (field_type, type_name) = match kind {
            Kind::Scalar(scalar) => (*scalar, None),
            Kind::Message => (FieldType::Message, Some(self.message_name(ty, module)?)),
            Kind::Enumeration(path) => (FieldType::Enum, Some(self.source.resolve(module, &parse_path(path)?)?)),
            Kind::Oneof(_) | Kind::Map(_) => return Err("a oneof or a map where a value is expected".to_owned()),
        };
        Ok(FieldDescriptorProto {
            name: Some(name),
            r#type: Some(field_type.into()),
            type_name: type_name.map(|name| format!(".{name}")),
            ..Default::default()
        })
    }

    /// The message that a Rust type stands for. Some of `google.protobuf` have types of the language.
    fn message_name(&self, ty: &Type, module: &[String]) -> Result<String, String> {
        if matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty()) {
            return Ok("google.protobuf.Empty".to_owned());
        }
        let Type::Path(path) = ty else { return Err("a message whose type is no path".to_owned()) };
        let segments: Vec<_> = path.path.segments.iter().map(|segment| plain(&segment.ident)).collect();
        let last = segments.last().map(String::as_str).unwrap_or_default();
        let arguments = generics(ty);
        if segments.first().is_some_and(|first| first == "prost_types") {
            return Ok(format!("google.protobuf.{last}"));
        }
        let is_foreign = path.path.leading_colon.is_some();
        let wrapper = match last {
            "Option" | "Box" | "Vec" if !is_byte(&arguments) => {
                let inner = arguments.first().ok_or("a container without a type")?;
                return self.message_name(inner, module);
            }
            "bool" => "BoolValue",
            "i32" => "Int32Value",
            "i64" => "Int64Value",
            "u32" => "UInt32Value",
            "u64" => "UInt64Value",
            "f32" => "FloatValue",
            "f64" => "DoubleValue",
            "String" if is_foreign => "StringValue",
            "Vec" | "Bytes" if is_foreign => "BytesValue",
            _ => return self.source.resolve(module, &path.path),
        };
        Ok(format!("google.protobuf.{wrapper}"))
    }

    /// Adds the oneofs of optional fields, which must be the last ones.
    fn finish(mut self) -> DescriptorProto {
        for index in self.optional {
            let oneof = i32::try_from(self.descriptor.oneof_decl.len()).ok();
            if let Some(field) = self.descriptor.field.get_mut(index) {
                let name = format!("_{}", field.name.as_deref().unwrap_or_default());
                field.oneof_index = oneof;
                self.descriptor.oneof_decl.push(OneofDescriptorProto { name: Some(name), options: None });
            }
        }
        self.descriptor
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cardinality {
    Single,
    Optional,
    Repeated,
}

impl Cardinality {
    const fn label(self) -> Label {
        match self {
            Self::Single | Self::Optional => Label::Optional,
            Self::Repeated => Label::Repeated,
        }
    }
}

/// The type of a field.
enum Kind {
    Scalar(FieldType),
    Message,
    /// By path.
    Enumeration(String),
    /// By path.
    Oneof(String),
    /// Of keys and values.
    Map(Box<(Self, Self)>),
}

impl Kind {
    /// The kind with this name in an attribute, or in the two types of a map.
    fn named(name: &str) -> Option<Self> {
        Some(Self::Scalar(match name {
            "double" => FieldType::Double,
            "float" => FieldType::Float,
            "int32" => FieldType::Int32,
            "int64" => FieldType::Int64,
            "uint32" => FieldType::Uint32,
            "uint64" => FieldType::Uint64,
            "sint32" => FieldType::Sint32,
            "sint64" => FieldType::Sint64,
            "fixed32" => FieldType::Fixed32,
            "fixed64" => FieldType::Fixed64,
            "sfixed32" => FieldType::Sfixed32,
            "sfixed64" => FieldType::Sfixed64,
            "bool" => FieldType::Bool,
            "string" => FieldType::String,
            "bytes" => FieldType::Bytes,
            "message" => return Some(Self::Message),
            _ => return None,
        }))
    }

    fn map(types: &str) -> Result<Self, String> {
        let kinds = types.split_once(',').map(|(key, value)| (Self::named(key.trim()), Self::named(value.trim())));
        match kinds {
            Some((Some(key), Some(value))) => Ok(Self::Map(Box::new((key, value)))),
            _ => Err(format!("a map of {types}")),
        }
    }
}

/// A `#[prost(...)]`.
struct FieldAttribute {
    kind: Kind,
    cardinality: Cardinality,
    /// `None`: a oneof, whose variants have numbers.
    number: Option<i32>,
}

impl FieldAttribute {
    fn parse(attributes: &[Attribute]) -> Result<Self, String> {
        let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("prost"));
        let parts = attribute
            .ok_or("no attribute of prost")?
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .map_err(|error| error.to_string())?;
        let (mut kind, mut number, mut cardinality) = (None, None, Cardinality::Single);
        for part in &parts {
            let name = part.path().get_ident().map(plain).unwrap_or_default();
            match (name.as_str(), value(part)) {
                ("tag", Some(text)) => number = Some(text.parse().map_err(|_| format!("the number {text}"))?),
                ("enumeration", Some(path)) => kind = Some(Kind::Enumeration(path)),
                ("oneof", Some(path)) => kind = Some(Kind::Oneof(path)),
                ("map" | "hash_map" | "btree_map", Some(types)) => kind = Some(Kind::map(&types)?),
                // The Rust type of a byte string; the numbers of a oneof, which its variants have too; storage on the heap.
                ("bytes", Some(_)) => kind = Kind::named("bytes"),
                ("tags", Some(_)) | ("boxed", None) => {}
                ("optional", None) => cardinality = Cardinality::Optional,
                ("repeated", None) => cardinality = Cardinality::Repeated,
                (name, None) if Kind::named(name).is_some() => kind = Kind::named(name),
                (name, _) => return Err(format!("unknown part of an attribute of prost: {name}")),
            }
        }
        Ok(Self { kind: kind.ok_or("an attribute of prost without a type")?, cardinality, number })
    }

    fn number(&self) -> Result<i32, String> {
        self.number.ok_or_else(|| "an attribute of prost without a number".to_owned())
    }
}

/// The text of `name = "text"`.
fn value(part: &Meta) -> Option<String> {
    let Meta::NameValue(pair) = part else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(text) = &literal.lit else { return None };
    Some(text.value())
}

/// `#[deprecated]`.
fn options(attributes: &[Attribute]) -> Option<FieldOptions> {
    let is_deprecated = attributes.iter().any(|attribute| attribute.path().is_ident("deprecated"));
    is_deprecated.then(|| FieldOptions { deprecated: Some(true), ..Default::default() })
}

/// The type parameters of the last part of a path.
fn generics(ty: &Type) -> Vec<&Type> {
    let Type::Path(path) = ty else { return Vec::new() };
    let Some(PathArguments::AngleBracketed(arguments)) = path.path.segments.last().map(|last| &last.arguments) else {
        return Vec::new();
    };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// Whether the only type is `u8`.
fn is_byte(types: &[&Type]) -> bool {
    matches!(types, [Type::Path(path)] if path.path.is_ident("u8"))
}

fn ident(field: &Field) -> String {
    field.ident.as_ref().map(plain).unwrap_or_default()
}

fn parse_path(path: &str) -> Result<syn::Path, String> {
    syn::parse_str(path).map_err(|error| format!("{path}: {error}"))
}

/// `column_families` -> `ColumnFamilies`.
fn camel_case(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    name.split('_').map(word).collect()
}
