//! Messages of the public admin API, from the published crates: they are not performance-critical, and complete enough.

pub use googleapis_tonic_google_bigtable_admin_v2::google::bigtable::admin::v2::*;

/// `google.longrunning`: operations that outlive their call.
pub mod longrunning {
    pub use googleapis_tonic_google_longrunning::google::longrunning::*;
}

/// `google.iam.v1`: policies and permissions.
pub mod iam {
    pub use googleapis_tonic_google_iam_v1::google::iam::v1::*;
}

/// `google.rpc`: status and its typed details.
pub mod rpc {
    pub use googleapis_tonic_google_rpc::google::rpc::*;
}
