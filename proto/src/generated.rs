//! Code that `prost` and `tonic` generate from our own protos. Their documentation is in `ebla/*.proto`.
//!
//! The workspace's lints are for hand-written code; generated code is exempt here, with the reason.

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
            reason = "generated: tonic uses `allow` in its own code"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        }
    };
}

generated! {
    messages record: "Stored records: values of Chubby's files, of METADATA cells and of a replica's meta keys.";
    messages command: "Commands of a tablet's Raft log." + clippy::module_inception;
    service tablet: "From a front or a direct client to the leader of a tablet.";
    service raft: "Between replicas of a tablet.";
    service control: "From the active master to tablet servers.";
    service locate: "Cluster discovery through any tablet server.";
    service operate: "Requests of operators to the cluster.";
    service trace: "Records of operations: what took how long.";
}

// A tenant with a package outside `ebla`.
generated!(@service mounttable "mounttable.v1", "A hierarchical name service." []);

// gRPC's own.
generated!(@service health "grpc.health.v1", "Health checks." []);

// OpenTelemetry's.
generated!(@service otlp "opentelemetry.proto.collector.trace.v1", "The export of traces to collectors." []);
