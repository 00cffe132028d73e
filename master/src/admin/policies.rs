//! Policies of instances, tables, column families and authorized views: stored beside the schemas in Chubby, replaced by compare-and-set. Both
//! admin services serve these calls, for every kind of resource.
//!
//! The master stores what it is given: fronts decide who may call (`tablet-server/src/front/access`). All policies of a table are in one
//! file, so an etag changes with each of them. The policy of a view is in the file of the view (`crate::views`).
//!
//! A file that cannot be read, because it is damaged or of a later release, gives no access, and only administrators reach this code then. A policy of
//! the instance or the table that is set without an etag replaces it as a whole.

use ebla_chubby::{Compare, Revision, TransactionOutcome, Write, paths};
use ebla_model::access::{Permission, Policy, Resource, TableAccess};
use ebla_model::error::{Error, Reason};
use ebla_proto::admin::iam;
use ebla_proto::convert::access::{
    instance_access_from_bytes, instance_access_to_bytes, policy_etag, policy_from_iam, policy_to_iam,
    table_access_from_bytes, table_access_to_bytes,
};
use tonic::{Request, Response, Status};
use tracing::info;

use super::handle::{MasterHandle, to_response};
use crate::active::ActiveMaster;
use crate::jobs::update_schema::find_active;
use crate::views;

/// GetIamPolicy of either service.
pub(crate) async fn answer_get(
    handle: &MasterHandle,
    request: Request<iam::GetIamPolicyRequest>,
) -> Result<Response<iam::Policy>, Status> {
    let outcome = async { get(&handle.active()?, request.into_inner()).await };
    to_response(outcome.await)
}

/// SetIamPolicy of either service.
pub(crate) async fn answer_set(
    handle: &MasterHandle,
    request: Request<iam::SetIamPolicyRequest>,
) -> Result<Response<iam::Policy>, Status> {
    let request = request.into_inner();
    to_response(handle.run_change(|master, _deadline| set(master, request)).await)
}

/// TestIamPermissions of either service.
pub(crate) fn answer_test(
    request: Request<iam::TestIamPermissionsRequest>,
) -> Result<Response<iam::TestIamPermissionsResponse>, Status> {
    to_response(test(request.into_inner()))
}

/// The policy of a resource; an empty one if it has none.
///
/// # Errors
/// `NotFoundTable`, `NotFoundFamily`, `NotFound`, `InvalidArgument`; `FailedPrecondition` when the file cannot be read; errors of Chubby.
async fn get(master: &ActiveMaster, request: iam::GetIamPolicyRequest) -> Result<iam::Policy, Error> {
    let resource: Resource = request.resource.parse()?;
    if let Resource::View(name) = &resource {
        let (policy, etag) = views::policy(master, name).await?;
        return Ok(policy_to_iam(&policy, etag));
    }
    let stored = Stored::read(master, resource).await?;
    Ok(policy_to_iam(&stored.policy()?, policy_etag(stored.modified.map(Revision::get))))
}

/// Replaces the policy of a resource.
///
/// # Errors
/// As [`get`]; `Conflict` when the request has an etag that is not the current one.
async fn set(master: ActiveMaster, request: iam::SetIamPolicyRequest) -> Result<iam::Policy, Error> {
    let resource: Resource = request.resource.parse()?;
    let given = request.policy.ok_or_else(|| Error::invalid("policy is missing"))?;
    let has_other_field = |mask: &prost_types::FieldMask| {
        mask.paths.iter().any(|path| !matches!(path.as_str(), "bindings" | "etag" | "version"))
    };
    if request.update_mask.as_ref().is_some_and(has_other_field) {
        return Err(Error::unimplemented("update_mask of a policy: only bindings and etag can be set"));
    }
    let policy = policy_from_iam(&given, &resource)?;
    if let Resource::View(name) = &resource {
        let etag = views::set_policy(&master, name, &policy, &given.etag).await?;
        return Ok(policy_to_iam(&policy, etag));
    }
    loop {
        let stored = Stored::read(&master, resource.clone()).await?;
        if !given.etag.is_empty() && given.etag != policy_etag(stored.modified.map(Revision::get)) {
            let message = format!("the policy of {resource} has changed: get it again, and change the new one");
            return Err(Error::new(Reason::Conflict, message));
        }
        let (compares, write) = stored.replacement(policy.clone())?;
        if let TransactionOutcome::Committed(revision) = master.commit_intent(compares, vec![write]).await? {
            info!(%resource, "policy replaced");
            return Ok(policy_to_iam(&policy, policy_etag(Some(revision.get()))));
        }
    }
}

/// The answer without access control: each caller has every permission that this release knows.
fn test(request: iam::TestIamPermissionsRequest) -> Result<iam::TestIamPermissionsResponse, Error> {
    let _valid: Resource = request.resource.parse()?;
    let is_known = |name: &String| name.parse::<Permission>().is_ok();
    Ok(iam::TestIamPermissionsResponse { permissions: request.permissions.into_iter().filter(is_known).collect() })
}

/// The file with the policy of a resource.
struct Stored {
    resource: Resource,
    path: String,
    modified: Option<Revision>,
    content: Content,
}

/// What a file contains, or why it cannot be read.
enum Content {
    Instance(Result<Policy, Error>),
    Table { access: Result<TableAccess, Error>, schema: Box<crate::schema_store::Stored<ebla_model::TableSchema>> },
}

impl Stored {
    async fn read(master: &ActiveMaster, resource: Resource) -> Result<Self, Error> {
        let chubby = master.chubby();
        let (path, schema) = match (&resource, resource.table()) {
            (Resource::Instance(name), _) => (paths::instance_access(name.project(), name.instance()), None),
            (_, Some(table)) => {
                let schema = find_active(chubby, table).await?;
                (paths::table_access(schema.value.table), Some(Box::new(schema)))
            }
            (_, None) => return Err(Error::internal("a resource is neither an instance nor of a table")),
        };
        let file = chubby.read(&path).await?;
        let modified = file.as_ref().map(|file| file.modified);
        let value = file.map(|file| file.value);
        let content = match schema {
            Some(schema) => {
                let access = value.map_or_else(|| Ok(TableAccess::default()), table_access_from_bytes);
                Content::Table { access, schema }
            }
            None => Content::Instance(value.map_or_else(|| Ok(Policy::default()), instance_access_from_bytes)),
        };
        Ok(Self { resource, path, modified, content })
    }

    fn policy(&self) -> Result<Policy, Error> {
        match (&self.content, &self.resource) {
            (Content::Instance(policy), _) => policy.clone().map_err(|error| self.unreadable(&error)),
            (Content::Table { access, schema }, resource) => {
                let access = access.as_ref().map_err(|error| self.unreadable(error))?;
                let Resource::Family(_table, family) = resource else { return Ok(access.policy.clone()) };
                let id = schema.value.require_family(family.as_str())?.id;
                Ok(access.families.get(&id).cloned().unwrap_or_default())
            }
        }
    }

    fn unreadable(&self, error: &Error) -> Error {
        let whose = match &self.resource {
            Resource::Instance(instance) => instance.to_string(),
            Resource::Table(table) | Resource::Family(table, _) => table.to_string(),
            Resource::View(view) => view.to_string(),
        };
        Error::new(
            Reason::FailedPrecondition,
            format!(
                "the policies of {whose} cannot be read ({}): an administrator can replace them with `ebla iam set --replace`; lists of \
                 families are lost then",
                error.message
            ),
        )
    }

    /// The write of the next content. It fails when the file or the schema of the table has changed meanwhile.
    fn replacement(self, policy: Policy) -> Result<(Vec<Compare>, Write), Error> {
        let unchanged = match self.modified {
            Some(modified) => Compare::Modified(self.path.clone(), modified),
            None => Compare::Absent(self.path.clone()),
        };
        match &self.content {
            Content::Instance(_before) => {
                Ok((vec![unchanged], Write::put(self.path, instance_access_to_bytes(&policy))))
            }
            Content::Table { access, schema } => {
                let family = match &self.resource {
                    Resource::Family(_table, family) => Some(family),
                    Resource::Instance(_) | Resource::Table(_) | Resource::View(_) => None,
                };
                let next = match (access, family) {
                    (Ok(access), _) => access.with_policy(family, policy, &schema.value)?,
                    (Err(_unreadable), None) => TableAccess::default().with_policy(None, policy, &schema.value)?,
                    // The rest of the file would be lost without a word.
                    (Err(error), Some(_family)) => return Err(self.unreadable(error)),
                };
                let same_schema = Compare::Modified(paths::table(schema.value.table), schema.modified);
                Ok((vec![unchanged, same_schema], Write::put(self.path, table_access_to_bytes(&next))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ebla_model::access::{Member, Role};
    use ebla_model::cell::FamilyName;
    use ebla_model::id::TableId;
    use ebla_model::schema::{TableName, TableSchema};

    use super::*;

    const DAMAGED: Bytes = Bytes::from_static(b"\xff\xff");

    fn stored(resource: &str) -> Stored {
        let resource: Resource = resource.parse().unwrap();
        let modified = Some(Revision::new(7));
        let Some(name) = resource.table().cloned() else {
            let content = Content::Instance(instance_access_from_bytes(DAMAGED));
            return Stored { resource, path: "access/instances/p/i".to_owned(), modified, content };
        };
        let schema = schema(&name);
        let path = paths::table_access(schema.value.table);
        let content = Content::Table { access: table_access_from_bytes(DAMAGED), schema: Box::new(schema) };
        Stored { resource, path, modified, content }
    }

    fn schema(name: &TableName) -> crate::schema_store::Stored<TableSchema> {
        let family = (FamilyName::new("f").unwrap(), None);
        let value = TableSchema::new(TableId::new(9), name.clone(), [family]).unwrap();
        crate::schema_store::Stored { value, modified: Revision::new(5) }
    }

    fn policy(role: Role) -> Policy {
        Policy::new([(role, "subject:alice".parse::<Member>().unwrap())]).unwrap()
    }

    #[test]
    fn a_policy_that_cannot_be_read_is_reported_and_can_be_replaced_as_a_whole() {
        for resource in ["projects/p/instances/i", "projects/p/instances/i/tables/t"] {
            let refused = stored(resource).policy().unwrap_err();
            let names_it = refused.message.starts_with(&format!("the policies of {resource} cannot be read"));
            assert!(refused.reason == Reason::FailedPrecondition && names_it, "{refused}");
            let next = policy(Role::Reader);
            let (compares, write) = stored(resource).replacement(next.clone()).unwrap();
            let Write::Put { path, value, .. } = write else { panic!("{resource} is deleted") };
            assert!(compares.contains(&Compare::Modified(path, Revision::new(7))), "only what was read is replaced");
            let written = match resource.contains("tables") {
                true => table_access_from_bytes(value).unwrap().policy,
                false => instance_access_from_bytes(value).unwrap(),
            };
            assert_eq!(written, next);
        }
    }

    #[test]
    fn the_list_of_a_family_does_not_replace_what_cannot_be_read() {
        let family = "projects/p/instances/i/tables/t/columnFamilies/f";
        let refused = stored(family).replacement(policy(Role::FamilyReader)).unwrap_err();
        assert!(refused.message.contains("--replace"), "{refused}");
    }
}
