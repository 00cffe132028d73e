//! Our own protos as `prost` and `tonic` write them. Their documentation stands in `ebla/*.proto`.
//!
//! The lints of this workspace speak to people; what a machine writes is excused here, once, with the reason.

macro_rules! generated {
    ($($kind:ident $name:ident: $doc:literal $(+ $lint:path)*;)*) => {$(
        generated!(@$kind $name concat!("ebla.", stringify!($name)), $doc [$($lint)*]);
    )*};
    (@messages $name:ident $package:expr, $doc:literal [$($lint:path)*]) => {
        #[doc = $doc]
        #[expect(missing_docs, $($lint,)* reason = "generated: documented in the proto")]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        }
    };
    (@service $name:ident $package:expr, $doc:literal []) => {
        #[doc = $doc]
        #[expect(missing_docs, clippy::missing_errors_doc, reason = "generated: documented in the proto")]
        #[expect(
            clippy::allow_attributes,
            clippy::allow_attributes_without_reason,
            reason = "generated: tonic excuses its own code by `allow`"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        }
    };
}

generated! {
    messages record: "What is kept: values of Chubby's files, of METADATA cells and of a replica's own keys.";
    messages command: "What stands in a tablet's Raft log." + clippy::large_enum_variant + clippy::module_inception;
    service tablet: "From a front or a direct client to the leader of a tablet.";
    service raft: "Between replicas of a tablet.";
    service control: "From the master in office to tablet servers.";
    service locate: "What any tablet server tells anyone who looks for the cluster.";
    service operate: "What an operator asks of the cluster.";
}

// A tenant: its package is its own.
generated!(@service mounttable "mounttable.v1", "A hierarchical name service." []);
