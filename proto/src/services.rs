//! Servers and clients of Google's public services, written by `build/services.rs`.
//!
//! A server method that is not overridden answers UNIMPLEMENTED with its name. Streams are `BoxStream`s.

#![expect(clippy::missing_errors_doc, reason = "generated: what may go wrong is the service's own documentation")]

/// `google.protobuf.Empty`, by a name: the generator takes paths only.
pub type Empty = ();

/// A public service.
#[derive(Clone, Copy, Debug)]
pub struct PublicService {
    /// Its full name.
    pub name: &'static str,
    /// Its calls.
    pub calls: &'static [PublicCall],
}

/// A call of a public service.
#[derive(Clone, Copy, Debug)]
pub struct PublicCall {
    /// Its name within the service.
    pub name: &'static str,
    /// What to do instead of it; `None` when it is served.
    pub instead: Option<&'static str>,
}

include!(concat!(env!("OUT_DIR"), "/services.rs"));

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use tonic::{Code, Request, Status};

    use super::{CATALOGUE, bigtable_server::Bigtable, bigtable_table_admin_server::BigtableTableAdmin};

    struct Nothing;
    impl Bigtable for Nothing {}
    impl BigtableTableAdmin for Nothing {}

    /// The refusal of a method that nobody implements. It never waits.
    fn refusal<T>(call: impl Future<Output = Result<T, Status>>) -> String {
        match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(status)) if status.code() == Code::Unimplemented => status.message().to_owned(),
            _ => panic!("not refused"),
        }
    }

    #[test]
    fn stubs_refuse_by_their_own_name() {
        let bigtable = "google.bigtable.v2.Bigtable";
        assert_eq!(
            refusal(Nothing.read_rows(Request::new(Default::default()))),
            format!("{bigtable}/ReadRows is not served by this release")
        );
        assert_eq!(
            refusal(Nothing.execute_query(Request::new(Default::default()))),
            format!("{bigtable}/ExecuteQuery is not served by this release: read rows with ReadRows and a filter")
        );
        assert!(
            refusal(Nothing.delete_schema_bundle(Request::new(Default::default())))
                .starts_with("google.bigtable.admin.v2.BigtableTableAdmin/DeleteSchemaBundle ")
        );
    }

    #[test]
    fn every_call_is_in_the_catalogue() {
        let counts: Vec<_> = CATALOGUE.iter().map(|service| (service.name, service.calls.len())).collect();
        let expected = [
            ("google.bigtable.v2.Bigtable", 11),
            ("google.bigtable.admin.v2.BigtableTableAdmin", 35),
            ("google.bigtable.admin.v2.BigtableInstanceAdmin", 31),
            ("google.longrunning.Operations", 5),
        ];
        assert_eq!(counts, expected);
    }
}
