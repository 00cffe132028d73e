//! Descriptors of the public services and their messages, for server reflection.
//!
//! ```text
//!   published crates ([`crate::crates`]) + src/data/*.rs -> [`source`] -> [`fields`] -> messages of the API
//!   [`crate::services`]                                                              -> its services
//!   protox                                                                           -> google.protobuf, and our own protos
//! ```
//!
//! The published crates have no descriptors, but their Rust types say as much: names, numbers and types of all fields. Comments
//! and options such as `google.api.http` are not there, other than `deprecated`. The files have names of their own, one per package,
//! because nothing says in which file Google declares a message.
//!
//! Messages that no service needs are left out. The whole set is checked by `prost_reflect`: every name in it is declared in it.

mod fields;
mod source;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use protox::{
    file::{FileResolver, GoogleFileResolver},
    prost_reflect::{
        DescriptorPool,
        prost::Message as _,
        prost_types::{
            DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FileDescriptorProto, FileDescriptorSet,
            ServiceDescriptorProto,
        },
    },
};

use self::source::Source;
use crate::{crates, services};

/// Our messages of `google.bigtable.v2`, some of which have fields that the published ones lack.
const OWN_PACKAGE: &str = "google.bigtable.v2";
const OWN_SOURCES: [&str; 4] = ["filters.rs", "mutations.rs", "requests.rs", "rows.rs"];
/// Our own protos with services that callers from outside of a cluster may use.
const OWN_PROTOS: [&str; 7] = [
    "record.proto",
    "health.proto",
    "locate.proto",
    "mounttable.proto",
    "operate.proto",
    "tablet.proto",
    "trace.proto",
];
/// The packages of messages that `google.protobuf.Any` carries, with the ends of their names: the metadata of operations, and the details of errors.
const IN_ANY: [(&str, &str); 3] =
    [("google.bigtable.admin.v2", "Metadata"), ("google.rpc", "ErrorInfo"), ("google.rpc", "RetryInfo")];
/// The package of the well-known types, each in a file of its own.
const WELL_KNOWN: &str = "google.protobuf";
const WELL_KNOWN_FILES: [&str; 7] = [
    "google/protobuf/any.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/wrappers.proto",
];

/// The encoded descriptors of all services. `own`: the descriptors of our own protos; `crate_folder`: this crate; `out`: a folder for
/// temporary files.
///
/// # Errors
/// When the source of the messages is not found or not as expected, or the set is not complete.
pub(crate) fn encoded(own: &FileDescriptorSet, crate_folder: &Path, out: &Path) -> Result<Vec<u8>, String> {
    let source = read_sources(crate_folder, out)?;
    let mut file = well_known()?;
    let mut api = Api::new(&source, &file);
    for (package, service) in services::descriptors()? {
        api.add_service(package, service)?;
    }
    for (package, end) in IN_ANY {
        let in_package = source.messages.iter().filter(|(_, message)| message.scope == package);
        for (name, _) in in_package.filter(|(name, _)| name.ends_with(end)) {
            api.visit(name)?;
        }
    }
    file.extend(api.into_files()?);
    file.extend(public_protos(own)?);
    let set = FileDescriptorSet { file };
    let pool = DescriptorPool::from_file_descriptor_set(set.clone());
    pool.map_err(|error| format!("the descriptors are not complete: {error}"))?;
    Ok(set.encode_to_vec())
}

/// The messages of the published crates, and ours with what those lack.
fn read_sources(crate_folder: &Path, out: &Path) -> Result<Source, String> {
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()));
    let workspace = crate_folder.parent().ok_or("this crate is in no workspace")?;
    let mut source = Source::default();
    for package in crates::packages(workspace, out)? {
        source.read(&package.package, &read(&package.file)?)?;
    }
    for name in OWN_SOURCES {
        source.read(OWN_PACKAGE, &read(&crate_folder.join("src/data").join(name))?)?;
    }
    Ok(source)
}

/// `google.protobuf`, as protox has it.
fn well_known() -> Result<Vec<FileDescriptorProto>, String> {
    let files = GoogleFileResolver::new();
    let open = |name: &str| files.open_file(name).map(|file| without_comments(file.file_descriptor_proto()));
    WELL_KNOWN_FILES.into_iter().map(open).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Our own protos that are public.
fn public_protos(own: &FileDescriptorSet) -> Result<Vec<FileDescriptorProto>, String> {
    let find = |name: &str| own.file.iter().find(|file| file.name() == name).map(without_comments);
    OWN_PROTOS.into_iter().map(|name| find(name).ok_or_else(|| format!("{name} is not compiled"))).collect()
}

/// A file without comments and positions, which are most of its bytes.
fn without_comments(file: &FileDescriptorProto) -> FileDescriptorProto {
    FileDescriptorProto { source_code_info: None, ..file.clone() }
}

/// The part of the API that the services use.
struct Api<'a> {
    source: &'a Source,
    /// The well-known file of each well-known type.
    well_known: BTreeMap<String, String>,
    services: BTreeMap<String, Vec<ServiceDescriptorProto>>,
    messages: BTreeMap<String, DescriptorProto>,
    enums: BTreeSet<String>,
}

impl<'a> Api<'a> {
    fn new(source: &'a Source, well_known: &[FileDescriptorProto]) -> Self {
        let types = well_known.iter().flat_map(|file| {
            let name = |message: &DescriptorProto| (format!("{WELL_KNOWN}.{}", message.name()), file.name().to_owned());
            file.message_type.iter().map(name)
        });
        Self {
            source,
            well_known: types.collect(),
            services: BTreeMap::new(),
            messages: BTreeMap::new(),
            enums: BTreeSet::new(),
        }
    }

    /// Adds a service, with all messages that it needs.
    fn add_service(&mut self, package: &str, service: ServiceDescriptorProto) -> Result<(), String> {
        for method in &service.method {
            for name in [method.input_type(), method.output_type()] {
                self.visit(name.trim_start_matches('.'))?;
            }
        }
        self.services.entry(package.to_owned()).or_default().push(service);
        Ok(())
    }

    /// Adds a message or an enum, with what it needs: the types of its fields, and the messages in which it is declared.
    fn visit(&mut self, name: &str) -> Result<(), String> {
        if self.messages.contains_key(name) || self.enums.contains(name) || self.well_known.contains_key(name) {
            return Ok(());
        }
        if let Some(found) = self.source.enums.get(name) {
            self.enums.insert(name.to_owned());
            return self.visit_scope(&found.scope);
        }
        let message = self.source.messages.get(name).ok_or_else(|| format!("{name} is declared nowhere"))?;
        let described = fields::describe(self.source, name, message)?;
        let needed = referenced(&described);
        // Before its fields, which may have the same type.
        self.messages.insert(name.to_owned(), described);
        for name in needed {
            self.visit(&name)?;
        }
        self.visit_scope(&message.scope)
    }

    /// Adds what a nested type is declared in, unless that is a package.
    fn visit_scope(&mut self, scope: &str) -> Result<(), String> {
        if self.source.messages.contains_key(scope) { self.visit(scope) } else { Ok(()) }
    }

    /// One file for each package.
    fn into_files(self) -> Result<Vec<FileDescriptorProto>, String> {
        let names = self.messages.keys().chain(&self.enums);
        let mut packages: BTreeSet<_> = names.map(|name| self.package(name).to_owned()).collect();
        packages.extend(self.services.keys().cloned());
        packages.iter().map(|package| self.file(package)).collect()
    }

    fn file(&self, package: &str) -> Result<FileDescriptorProto, String> {
        let message_type = self.messages_in(package)?;
        let service = self.services.get(package).cloned().unwrap_or_default();
        let methods = service.iter().flat_map(|service| &service.method);
        let of_methods = methods.flat_map(|method| [method.input_type(), method.output_type()]);
        let mut needed: BTreeSet<_> = of_methods.map(|name| name.trim_start_matches('.').to_owned()).collect();
        for message in &message_type {
            needed.extend(referenced_inside(message));
        }
        let name = file_name(package);
        let files: BTreeSet<_> = needed.iter().map(|needed| self.file_of(needed)).collect();
        Ok(FileDescriptorProto {
            dependency: files.into_iter().filter(|file| *file != name).collect(),
            name: Some(name),
            package: Some(package.to_owned()),
            message_type,
            enum_type: self.enums_in(package)?,
            service,
            syntax: Some("proto3".to_owned()),
            ..Default::default()
        })
    }

    /// The messages that are declared in a package or message.
    fn messages_in(&self, scope: &str) -> Result<Vec<DescriptorProto>, String> {
        let declared = self.messages.iter().filter(|(name, _)| scope_of(name) == scope);
        let complete = |(name, message): (&String, &DescriptorProto)| {
            let mut message = message.clone();
            message.nested_type.extend(self.messages_in(name)?);
            message.enum_type = self.enums_in(name)?;
            Ok(message)
        };
        declared.map(complete).collect()
    }

    fn enums_in(&self, scope: &str) -> Result<Vec<EnumDescriptorProto>, String> {
        let declared =
            self.source.enums.iter().filter(|(name, found)| found.scope == scope && self.enums.contains(*name));
        let describe = |(_, found): (&String, &source::Enum)| {
            let values = found.values(self.source)?.into_iter().map(|(name, number)| EnumValueDescriptorProto {
                name: Some(name),
                number: Some(number),
                options: None,
            });
            Ok(EnumDescriptorProto { name: Some(found.name()), value: values.collect(), ..Default::default() })
        };
        declared.map(describe).collect()
    }

    /// The file in which a type is declared.
    fn file_of(&self, name: &str) -> String {
        self.well_known.get(name).cloned().unwrap_or_else(|| file_name(self.package(name)))
    }

    /// The package of a type, which may be nested in messages.
    fn package<'n>(&self, name: &'n str) -> &'n str {
        let mut scope = scope_of(name);
        while self.source.messages.contains_key(scope) {
            scope = scope_of(scope);
        }
        scope
    }
}

/// `google.bigtable.v2` -> `google/bigtable/v2/messages.proto`.
fn file_name(package: &str) -> String {
    format!("{}/messages.proto", package.replace('.', "/"))
}

/// What a name is declared in: `google.rpc` for `google.rpc.Status`.
fn scope_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(scope, _)| scope)
}

/// The types of the fields of a message, and of the entries of its maps.
fn referenced(message: &DescriptorProto) -> Vec<String> {
    let entries: Vec<_> = message.nested_type.iter().filter(|nested| nested.options.is_some()).collect();
    let is_entry = |name: &str| entries.iter().any(|entry| names_entry(name, message.name(), entry.name()));
    let fields = message.field.iter().chain(entries.iter().flat_map(|entry| &entry.field));
    let names = fields.filter_map(|field| field.type_name.as_deref()).filter(|name| !is_entry(name));
    names.map(|name| name.trim_start_matches('.').to_owned()).collect()
}

/// Whether `name` is that of `entry` in `message`.
fn names_entry(name: &str, message: &str, entry: &str) -> bool {
    name.ends_with(&format!(".{message}.{entry}"))
}

/// The types of the fields of a message and of all messages in it.
fn referenced_inside(message: &DescriptorProto) -> Vec<String> {
    let nested = message.nested_type.iter().filter(|nested| nested.options.is_none());
    referenced(message).into_iter().chain(nested.flat_map(referenced_inside)).collect()
}
