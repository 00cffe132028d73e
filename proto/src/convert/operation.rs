//! Long-running operations of the public admin API: here they are complete when they are returned.

use bytes::{Buf, Bytes};
use ebla_model::Error;
use prost::Message;
use prost_types::Any;

use super::record::{decode_record, encode_record};
use crate::{
    admin::{
        self,
        longrunning::{Operation, operation},
    },
    record,
};

/// A message that can be part of an operation, together with its name.
pub trait InOperation: Message {
    /// Its full name.
    const NAME: &'static str;
}

macro_rules! in_operations {
    ($($kind:ident),*) => {$(
        impl InOperation for admin::$kind {
            const NAME: &'static str = concat!("google.bigtable.admin.v2.", stringify!($kind));
        }
    )*};
}

in_operations!(
    AppProfile,
    AuthorizedView,
    Cluster,
    CreateAuthorizedViewMetadata,
    CreateInstanceMetadata,
    Instance,
    PartialUpdateClusterMetadata,
    Table,
    UpdateAppProfileMetadata,
    UpdateAuthorizedViewMetadata,
    UpdateClusterMetadata,
    UpdateInstanceMetadata,
    UpdateTableMetadata
);

/// A completed operation.
pub fn finished_operation(name: String, metadata: &impl InOperation, response: &impl InOperation) -> Operation {
    Operation {
        name,
        metadata: Some(any(metadata)),
        done: true,
        result: Some(operation::Result::Response(any(response))),
    }
}

fn any<M: InOperation>(message: &M) -> Any {
    Any { type_url: format!("type.googleapis.com/{}", M::NAME), value: message.encode_to_vec() }
}

/// A completed operation as stored in Chubby.
pub fn finished_operation_to_bytes(operation: &Operation) -> Bytes {
    encode_record(record::FinishedOperation { operation: operation.encode_to_vec().into(), ..Default::default() })
}

/// A completed operation as stored in Chubby.
///
/// # Errors
/// `DataDamaged` when it does not decode or the version is unknown.
pub fn finished_operation_from_bytes(bytes: impl Buf) -> Result<Operation, Error> {
    let kept: record::FinishedOperation = decode_record(bytes)?;
    Operation::decode(kept.operation).map_err(|error| Error::damaged(format!("read finished operation: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_with_the_names_of_their_messages() {
        let table = admin::Table { name: "t".to_owned(), ..Default::default() };
        let sent = finished_operation("operations/o".to_owned(), &admin::UpdateTableMetadata::default(), &table);
        assert!(sent.done);
        assert_eq!(finished_operation_from_bytes(finished_operation_to_bytes(&sent)), Ok(sent.clone()));
        let Some(operation::Result::Response(response)) = sent.result else { panic!("no response") };
        assert_eq!(response.type_url, "type.googleapis.com/google.bigtable.admin.v2.Table");
        assert_eq!(admin::Table::decode(response.value.as_slice()), Ok(table));
        assert_eq!(
            sent.metadata.map(|metadata| metadata.type_url).as_deref(),
            Some("type.googleapis.com/google.bigtable.admin.v2.UpdateTableMetadata")
        );
    }

    #[test]
    fn damage_is_no_operation() {
        let damaged = record::FinishedOperation { operation: Bytes::from_static(b"\xff"), ..Default::default() };
        assert!(finished_operation_from_bytes(encode_record(damaged)).is_err());
    }
}
