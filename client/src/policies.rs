//! Admin calls for policies of instances, tables and column families.

use bytes::Bytes;
use ebla_model::access::{Permission, Policy, Resource};
use ebla_model::error::Error;
use ebla_proto::admin::iam;
use ebla_proto::convert::access::{policy_from_iam, policy_to_iam};
use tonic::{Response, Status};

use crate::admin::{Admin, into_message};

/// A policy, and the etag of what was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredPolicy {
    /// The policy.
    pub policy: Policy,
    /// Given with a new policy, it makes the change fail if another one came before.
    pub etag: Bytes,
}

impl Admin {
    /// The policy of a resource; an empty one if it has none.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`, `PermissionDenied`, `Unauthenticated`; `Unavailable`.
    pub async fn policy(&self, resource: &Resource) -> Result<StoredPolicy, Error> {
        let request = iam::GetIamPolicyRequest { resource: resource.to_string(), ..Default::default() };
        stored(resource, self.tables().get_iam_policy(self.request(request)).await)
    }

    /// Replaces the policy of a resource; returns the new one. `etag`: that of the policy that it replaces; empty: whatever is there.
    ///
    /// # Errors
    /// `Conflict` when the present policy has another etag; otherwise as [`Self::policy`].
    pub async fn set_policy(&self, resource: &Resource, policy: &Policy, etag: Bytes) -> Result<StoredPolicy, Error> {
        let policy = Some(policy_to_iam(policy, etag));
        let request = iam::SetIamPolicyRequest { resource: resource.to_string(), policy, ..Default::default() };
        stored(resource, self.tables().set_iam_policy(self.request(request)).await)
    }

    /// Those of the permissions that the caller has for a resource.
    ///
    /// # Errors
    /// `Unauthenticated`; `Unavailable`.
    pub async fn test_permissions(
        &self,
        resource: &Resource,
        permissions: &[Permission],
    ) -> Result<Vec<Permission>, Error> {
        let permissions = permissions.iter().map(ToString::to_string).collect();
        let request = iam::TestIamPermissionsRequest { resource: resource.to_string(), permissions };
        let answer = into_message(self.tables().test_iam_permissions(self.request(request)).await)?;
        answer.permissions.iter().map(|name| name.parse()).collect()
    }
}

fn stored(resource: &Resource, answer: Result<Response<iam::Policy>, Status>) -> Result<StoredPolicy, Error> {
    let policy = into_message(answer)?;
    Ok(StoredPolicy { policy: policy_from_iam(&policy, resource)?, etag: policy.etag })
}
