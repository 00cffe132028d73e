//! Policies: as records of Chubby, and as messages of the public API (`google.iam.v1`).

use bytes::{Buf, Bytes};
use ebla_model::access::{Member, Policy, Resource, Role, TableAccess};
use ebla_model::{Error, FamilyId};

use super::{decode_record, encode_record, required};
use crate::admin::iam;
use crate::record;

/// The etag of a resource that has no policy yet: the bytes that the public service sends, "ACAB" as base64.
const NO_POLICY: &[u8] = &[0x00, 0x20, 0x01];

/// The policy of an instance, as stored in Chubby.
pub fn instance_access_to_bytes(policy: &Policy) -> Bytes {
    encode_record(record::InstanceAccess { policy: Some(policy_to_record(policy)), ..Default::default() })
}

/// The policy of an instance, as stored in Chubby.
///
/// # Errors
/// `DataDamaged` when a part is invalid, also a role that this release does not know.
pub fn instance_access_from_bytes(bytes: impl Buf) -> Result<Policy, Error> {
    let message: record::InstanceAccess = decode_record(bytes)?;
    policy_from_record(&message.policy.unwrap_or_default())
}

/// The policies of a table and its families, as stored in Chubby.
pub fn table_access_to_bytes(access: &TableAccess) -> Bytes {
    let family = |(id, policy): (&FamilyId, &Policy)| record::FamilyAccess {
        family: id.get(),
        policy: Some(policy_to_record(policy)),
    };
    encode_record(record::TableAccess {
        policy: Some(policy_to_record(&access.policy)),
        families: access.families.iter().map(family).collect(),
        ..Default::default()
    })
}

/// The policies of a table and its families, as stored in Chubby.
///
/// # Errors
/// As [`instance_access_from_bytes`].
pub fn table_access_from_bytes(bytes: impl Buf) -> Result<TableAccess, Error> {
    let message: record::TableAccess = decode_record(bytes)?;
    let family = |family: &record::FamilyAccess| {
        let policy = required(family.policy.as_ref(), "policies of a table: the list of a family")?;
        Ok((FamilyId::new(family.family), policy_from_record(policy)?))
    };
    Ok(TableAccess {
        policy: policy_from_record(&message.policy.unwrap_or_default())?,
        families: message.families.iter().map(family).collect::<Result<_, Error>>()?,
        is_unreadable: false,
    })
}

pub(super) fn policy_to_record(policy: &Policy) -> record::AccessPolicy {
    let binding = |(role, members): (Role, &std::collections::BTreeSet<Member>)| record::AccessBinding {
        role: role.name().to_owned(),
        members: members.iter().map(ToString::to_string).collect(),
    };
    record::AccessPolicy { bindings: policy.bindings().map(binding).collect() }
}

pub(super) fn policy_from_record(policy: &record::AccessPolicy) -> Result<Policy, Error> {
    let damaged = |error: Error| Error::damaged(format!("policy: {error}"));
    let mut bindings = Vec::new();
    for binding in &policy.bindings {
        let role: Role = binding.role.parse().map_err(damaged)?;
        for member in &binding.members {
            bindings.push((role, member.parse().map_err(damaged)?));
        }
    }
    Policy::new(bindings).map_err(damaged)
}

/// The etag of a stored policy, from the revision of its file; `None`: there is no file.
pub fn policy_etag(revision: Option<u64>) -> Bytes {
    revision.map_or_else(|| Bytes::from_static(NO_POLICY), |revision| Bytes::copy_from_slice(&revision.to_be_bytes()))
}

/// A policy with its etag, as the public API shows it.
pub fn policy_to_iam(policy: &Policy, etag: Bytes) -> iam::Policy {
    let binding = |(role, members): (Role, &std::collections::BTreeSet<Member>)| iam::Binding {
        role: role.name().to_owned(),
        members: members.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let version = i32::from(!policy.is_empty());
    iam::Policy { version, bindings: policy.bindings().map(binding).collect(), etag, ..Default::default() }
}

/// A policy of a request, for this resource.
///
/// # Errors
/// `InvalidArgument` for unknown roles and members, and roles that are not for this kind of resource; `Unimplemented` for conditions and
/// configurations of audit logs.
pub fn policy_from_iam(policy: &iam::Policy, resource: &Resource) -> Result<Policy, Error> {
    if !policy.audit_configs.is_empty() {
        return Err(Error::unimplemented(
            "audit_configs of a policy: the audit log is configured with options of the server",
        ));
    }
    let mut bindings = Vec::new();
    for binding in &policy.bindings {
        if binding.condition.is_some() {
            return Err(Error::unimplemented("bindings with a condition are not served by this release"));
        }
        let role: Role = binding.role.parse()?;
        for member in &binding.members {
            bindings.push((role, member.parse()?));
        }
    }
    let policy = Policy::new(bindings)?;
    resource.check_roles(&policy)?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use ebla_model::Reason;

    use super::*;

    fn policy(role: Role) -> Policy {
        Policy::new([(role, "user:a@example.org".parse().unwrap()), (role, Member::AllAuthenticatedUsers)]).unwrap()
    }

    #[test]
    fn policies_survive_a_round_trip() {
        let instance = policy(Role::User);
        assert_eq!(instance_access_from_bytes(instance_access_to_bytes(&instance)), Ok(instance.clone()));
        let families = [(FamilyId::new(3), policy(Role::FamilyReader))].into();
        let table = TableAccess { policy: policy(Role::Reader), families, is_unreadable: false };
        assert_eq!(table_access_from_bytes(table_access_to_bytes(&table)), Ok(table));
        let resource: Resource = "projects/p/instances/i".parse().unwrap();
        let shown = policy_to_iam(&instance, policy_etag(Some(7)));
        assert_eq!(policy_from_iam(&shown, &resource), Ok(instance));
    }

    #[test]
    fn policies_that_mean_more_than_this_release_knows_are_refused() {
        let resource: Resource = "projects/p/instances/i".parse().unwrap();
        let mut conditional = policy_to_iam(&policy(Role::User), Bytes::new());
        conditional.bindings[0].condition = Some(Default::default());
        assert_eq!(policy_from_iam(&conditional, &resource).unwrap_err().reason, Reason::Unimplemented);
        let unknown = record::AccessPolicy {
            bindings: vec![record::AccessBinding { role: "roles/new".to_owned(), members: Vec::new() }],
        };
        assert_eq!(policy_from_record(&unknown).unwrap_err().reason, Reason::DataDamaged);
    }
}
