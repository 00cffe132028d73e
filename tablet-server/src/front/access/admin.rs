//! Admin calls: which right each needs, and for what. A call that is not listed needs an administrator.
//!
//! A front forwards admin calls to the master without decoding them; here the part that names the resource is decoded.

use bytes::Bytes;
use ebla_model::access::{FamilyRights, Permission, Resource, ViewName};
use ebla_model::{Error, FamilyName, InstanceName, Reason, TableName};
use ebla_proto::admin::modify_column_families_request::modification::Mod;
use ebla_proto::admin::{self, iam, longrunning};
use ebla_proto::operate;
use ebla_proto::services::CATALOGUE;
use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;

use super::audit::Decision;
use super::hot_tablets::HotTabletsFilter;
use super::{AccessControl, Caller, Enforced, KnownCaller, denied};

/// The most permissions that a call tests.
const PERMISSIONS_MAX: usize = 100;

/// The call whose answer is about all tables of an instance, also those of which the caller may not read all.
const HOT_TABLETS: &str = "/google.bigtable.admin.v2.BigtableInstanceAdmin/ListHotTablets";

/// A call that its caller may make. Only this module makes it, and the master's client takes nothing else.
#[derive(Debug)]
pub(in crate::front) struct AuthorizedCall {
    path: PathAndQuery,
    message: Bytes,
}

impl AuthorizedCall {
    /// The method, and the encoded request.
    pub(in crate::front) fn into_parts(self) -> (PathAndQuery, Bytes) {
        (self.path, self.message)
    }
}

/// What becomes of an admin call.
#[derive(Debug)]
pub(in crate::front) enum AdminOutcome {
    /// The master carries it out.
    Forward(AuthorizedCall),
    /// The master carries it out, and the caller sees the part of the answer that the filter leaves.
    ForwardFiltered(AuthorizedCall, HotTabletsFilter),
    /// This is its encoded answer.
    Answer(Bytes),
}

/// What a call needs.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Need {
    /// An identity alone: the call is refused by the master, for every caller.
    Identity,
    /// An administrator by configuration.
    Administrator,
    /// A permission for an instance.
    Instance(InstanceName, Permission),
    /// A permission for an instance, and the right to change all families of its tables.
    WholeInstance(InstanceName, Permission),
    /// A permission for an authorized view.
    View(ViewName, Permission),
    /// A permission for the table of an authorized view, which the call creates, changes or deletes.
    ViewOfTable(ViewName, Permission),
    /// A permission for a table, and rights for families.
    Table(TableName, Permission, Families),
    /// Nothing: the answer is what the caller may do.
    Test(Box<iam::TestIamPermissionsRequest>),
}

/// The families that a call touches.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Families {
    /// None of them.
    None,
    /// These must be changeable.
    Change(Vec<String>),
    /// All must be changeable: they go with the table.
    ChangeAll,
    /// All must be writable: cells of each may be deleted.
    WriteAll,
    /// All must be readable: the keys of rows are shown, whatever families they have.
    ReadAll,
}

impl Families {
    fn are_permitted(&self, rights: &FamilyRights) -> bool {
        match self {
            Self::None => true,
            Self::Change(names) => names.iter().all(|name| rights.changeable.contains(name)),
            Self::ChangeAll => rights.changeable.is_all(),
            Self::WriteAll => rights.writable.is_all(),
            Self::ReadAll => rights.readable.is_all(),
        }
    }
}

impl Need {
    /// What is recorded.
    fn resource(&self) -> String {
        match self {
            Self::Identity | Self::Administrator => String::new(),
            Self::Instance(name, _) | Self::WholeInstance(name, _) => name.to_string(),
            Self::View(name, _) | Self::ViewOfTable(name, _) => name.to_string(),
            Self::Table(name, ..) => name.to_string(),
            Self::Test(request) => request.resource.clone(),
        }
    }
}

impl AccessControl {
    /// Decides about an admin call.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when the part that names the resource does not decode.
    pub(in crate::front) async fn admin(
        &self,
        caller: &Caller,
        path: PathAndQuery,
        message: Bytes,
    ) -> Result<AdminOutcome, Error> {
        let Some((enforced, caller)) = self.enforced(caller)? else {
            return Ok(AdminOutcome::Forward(AuthorizedCall { path, message }));
        };
        let need = need(path.path(), &message);
        let resource = need.as_ref().map(Need::resource).unwrap_or_default();
        let decided = match need {
            Ok(need) => enforced.decide(caller, need).await,
            Err(error) => Err(error),
        };
        enforced.audit.record_admin(caller, path.path(), &resource, Decision::of(&decided));
        if let Some(answer) = decided? {
            return Ok(AdminOutcome::Answer(answer));
        }
        let is_filtered = path.path() == HOT_TABLETS;
        let call = AuthorizedCall { path, message };
        Ok(match self.enforced.clone().filter(|_enforced| is_filtered) {
            Some(enforced) => AdminOutcome::ForwardFiltered(call, HotTabletsFilter::new(enforced, caller.clone())),
            None => AdminOutcome::Forward(call),
        })
    }
}

impl Enforced {
    /// The answer to a permitted call, if the master is not needed for it.
    async fn decide(&self, caller: &KnownCaller, need: Need) -> Result<Option<Bytes>, Error> {
        self.check_expiry(caller)?;
        match need {
            Need::Identity => Ok(None),
            Need::Administrator => {
                let rules = self.rules(None, None);
                let refusal = || Error::new(Reason::PermissionDenied, "this call is for administrators of the cluster");
                rules.is_administrator(&caller.identity).then_some(None).ok_or_else(refusal)
            }
            Need::Instance(name, permission) => self.check_admin_of(caller, &name, permission).map(|()| None),
            Need::WholeInstance(name, permission) => {
                self.check_admin_of(caller, &name, permission)?;
                for schema in self.directory.schemas().iter().filter(|schema| schema.name.is_in(&name)) {
                    self.check_table(caller, &schema.name, permission, &Families::ChangeAll).await?;
                }
                Ok(None)
            }
            Need::View(name, permission) => {
                self.granted_policies(caller, &name.into(), &[permission]).await.map(|_policies| None)
            }
            Need::ViewOfTable(name, permission) => {
                self.check_table(caller, name.table(), permission, &Families::None).await.map(|()| None)
            }
            Need::Table(name, permission, families) => {
                self.check_table(caller, &name, permission, &families).await.map(|()| None)
            }
            Need::Test(request) => self.granted(caller, *request).await.map(Some),
        }
    }

    fn check_admin_of(&self, caller: &KnownCaller, name: &InstanceName, permission: Permission) -> Result<(), Error> {
        let policy = self.directory.instance_policy(name.project(), name.instance());
        let is_granted = self.rules(policy.as_deref(), None).grants(permission, &caller.identity);
        is_granted.then_some(()).ok_or_else(|| denied(permission, name))
    }

    async fn check_table(
        &self,
        caller: &KnownCaller,
        name: &TableName,
        permission: Permission,
        families: &Families,
    ) -> Result<(), Error> {
        let policies = self.granted_policies(caller, &name.clone().into(), &[permission]).await?;
        let Some((schema, _access)) = &policies.table else {
            // Lists are unknown: a call that depends on them waits until Chubby is there, which it needs anyway.
            return match families {
                Families::None => Ok(()),
                _ if self.rules(None, None).is_administrator(&caller.identity) => Ok(()),
                _ => Err(denied(permission, name)),
            };
        };
        let rights = self.rules_of(&policies).families(schema, &caller.identity);
        if families.are_permitted(&rights) {
            return Ok(());
        }
        let message =
            format!("table {name}: the access list of a column family that the call touches does not permit it");
        Err(Error::new(Reason::PermissionDenied, message))
    }

    /// Those of the named permissions that the caller has for the resource. Nothing says whether the resource exists.
    async fn granted(&self, caller: &KnownCaller, request: iam::TestIamPermissionsRequest) -> Result<Bytes, Error> {
        let resource: Resource = request.resource.parse()?;
        let granted = match &resource {
            Resource::Instance(name) => {
                let policy = self.directory.instance_policy(name.project(), name.instance());
                let rules = self.rules(policy.as_deref(), None);
                permitted(&request.permissions, |permission| rules.grants(permission, &caller.identity))
            }
            Resource::View(name) => {
                let policies = self.directory.known_table_policies(name.table(), Some(name));
                let rules = self.rules_of(&policies);
                permitted(&request.permissions, |permission| rules.grants(permission, &caller.identity))
            }
            Resource::Table(name) => {
                let policies = self.directory.known_table_policies(name, None);
                let rules = self.rules_of(&policies);
                permitted(&request.permissions, |permission| rules.grants(permission, &caller.identity))
            }
            Resource::Family(name, family) => {
                let policies = self.directory.known_table_policies(name, None);
                let rules = self.rules_of(&policies);
                let schema = policies.table.as_ref().map(|(schema, _access)| schema);
                let rights = schema.map(|schema| rules.families(schema, &caller.identity)).unwrap_or_default();
                permitted(&request.permissions, |permission| {
                    rules.grants(permission, &caller.identity) && is_permitted(permission, family, &rights)
                })
            }
        };
        Ok(iam::TestIamPermissionsResponse { permissions: granted }.encode_to_vec().into())
    }
}

fn permitted(names: &[String], is_granted: impl Fn(Permission) -> bool) -> Vec<String> {
    names.iter().filter(|name| name.parse().is_ok_and(&is_granted)).cloned().collect()
}

/// Whether the list of a family permits what a permission for the table is about.
fn is_permitted(permission: Permission, family: &FamilyName, rights: &FamilyRights) -> bool {
    let set = match permission {
        Permission::ReadRows | Permission::SampleRowKeys => &rights.readable,
        Permission::MutateRows => &rights.writable,
        Permission::UpdateTable | Permission::DeleteTable | Permission::SetTablePolicy => &rights.changeable,
        _ => return true,
    };
    set.contains(family.as_str())
}

/// What a call of this path needs.
fn need(path: &str, message: &Bytes) -> Result<Need, Error> {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Ok(Need::Administrator);
    };
    if is_not_served(service, method) {
        return Ok(Need::Identity);
    }
    match service {
        "google.bigtable.admin.v2.BigtableTableAdmin" => need_for_tables(method, message),
        "google.bigtable.admin.v2.BigtableInstanceAdmin" => need_for_instances(method, message),
        "google.longrunning.Operations" => need_for_operations(method, message),
        "ebla.operate.Operate" if method == "GetKeyHeat" => {
            let name = decode::<operate::GetKeyHeatRequest>(message)?.table.parse()?;
            Ok(Need::Table(name, Permission::ReadRows, Families::ReadAll))
        }
        _ => Ok(Need::Administrator),
    }
}

fn is_not_served(service: &str, method: &str) -> bool {
    let known = CATALOGUE.iter().find(|known| known.name == service);
    known.is_some_and(|known| known.calls.iter().any(|call| call.name == method && call.instead.is_some()))
}

fn decode<M: Message + Default>(message: &Bytes) -> Result<M, Error> {
    M::decode(message.clone()).map_err(|error| Error::invalid(format!("the request does not decode: {error}")))
}

fn need_for_tables(method: &str, message: &Bytes) -> Result<Need, Error> {
    let table = |name: String, permission| Ok(Need::Table(name.parse()?, permission, Families::None));
    match method {
        "CreateTable" => of_instance(&decode::<admin::CreateTableRequest>(message)?.parent, Permission::CreateTable),
        "ListTables" => of_instance(&decode::<admin::ListTablesRequest>(message)?.parent, Permission::ListTables),
        "GetTable" => table(decode::<admin::GetTableRequest>(message)?.name, Permission::GetTable),
        "UpdateTable" => {
            let named = decode::<admin::UpdateTableRequest>(message)?.table.unwrap_or_default();
            table(named.name, Permission::UpdateTable)
        }
        "DeleteTable" => {
            let name = decode::<admin::DeleteTableRequest>(message)?.name.parse()?;
            Ok(Need::Table(name, Permission::DeleteTable, Families::ChangeAll))
        }
        "ModifyColumnFamilies" => {
            let request: admin::ModifyColumnFamiliesRequest = decode(message)?;
            // A new family has no list yet.
            let is_change = |change: &&admin::modify_column_families_request::Modification| {
                !matches!(change.r#mod, Some(Mod::Create(_)))
            };
            let changed = request.modifications.iter().filter(is_change).map(|change| change.id.clone()).collect();
            Ok(Need::Table(request.name.parse()?, Permission::UpdateTable, Families::Change(changed)))
        }
        "DropRowRange" => {
            let name = decode::<admin::DropRowRangeRequest>(message)?.name.parse()?;
            Ok(Need::Table(name, Permission::MutateRows, Families::WriteAll))
        }
        // Not by the policy of the view: it must not be a way to more than the view.
        "CreateAuthorizedView" => {
            let request: admin::CreateAuthorizedViewRequest = decode(message)?;
            let name = ViewName::new(request.parent.parse()?, &request.authorized_view_id)?;
            Ok(Need::ViewOfTable(name, Permission::CreateView))
        }
        "ListAuthorizedViews" => {
            table(decode::<admin::ListAuthorizedViewsRequest>(message)?.parent, Permission::ListViews)
        }
        "UpdateAuthorizedView" => {
            let named = decode::<admin::UpdateAuthorizedViewRequest>(message)?.authorized_view.unwrap_or_default();
            Ok(Need::ViewOfTable(named.name.parse()?, Permission::UpdateView))
        }
        "DeleteAuthorizedView" => {
            let name = decode::<admin::DeleteAuthorizedViewRequest>(message)?.name.parse()?;
            Ok(Need::ViewOfTable(name, Permission::DeleteView))
        }
        "GetAuthorizedView" => {
            Ok(Need::View(decode::<admin::GetAuthorizedViewRequest>(message)?.name.parse()?, Permission::GetView))
        }
        "GenerateConsistencyToken" => {
            table(decode::<admin::GenerateConsistencyTokenRequest>(message)?.name, Permission::GenerateConsistencyToken)
        }
        "CheckConsistency" => {
            table(decode::<admin::CheckConsistencyRequest>(message)?.name, Permission::CheckConsistency)
        }
        _ => need_for_policies(method, message),
    }
}

fn need_for_instances(method: &str, message: &Bytes) -> Result<Need, Error> {
    match method {
        // Nothing above instances has a policy.
        "CreateInstance" | "ListInstances" => Ok(Need::Administrator),
        "GetInstance" => of_instance(&decode::<admin::GetInstanceRequest>(message)?.name, Permission::GetInstance),
        "UpdateInstance" => of_instance(&decode::<admin::Instance>(message)?.name, Permission::UpdateInstance),
        "PartialUpdateInstance" => {
            let named = decode::<admin::PartialUpdateInstanceRequest>(message)?.instance.unwrap_or_default();
            of_instance(&named.name, Permission::UpdateInstance)
        }
        "DeleteInstance" => {
            let name = decode::<admin::DeleteInstanceRequest>(message)?.name.parse()?;
            Ok(Need::WholeInstance(name, Permission::DeleteInstance))
        }
        "GetCluster" => of_instance(&decode::<admin::GetClusterRequest>(message)?.name, Permission::GetCluster),
        "ListClusters" => of_instance(&decode::<admin::ListClustersRequest>(message)?.parent, Permission::ListClusters),
        "UpdateCluster" => of_instance(&decode::<admin::Cluster>(message)?.name, Permission::UpdateCluster),
        "PartialUpdateCluster" => {
            let named = decode::<admin::PartialUpdateClusterRequest>(message)?.cluster.unwrap_or_default();
            of_instance(&named.name, Permission::UpdateCluster)
        }
        "ListHotTablets" => {
            of_instance(&decode::<admin::ListHotTabletsRequest>(message)?.parent, Permission::ListHotTablets)
        }
        "CreateAppProfile" => {
            of_instance(&decode::<admin::CreateAppProfileRequest>(message)?.parent, Permission::CreateAppProfile)
        }
        "GetAppProfile" => {
            of_instance(&decode::<admin::GetAppProfileRequest>(message)?.name, Permission::GetAppProfile)
        }
        "ListAppProfiles" => {
            of_instance(&decode::<admin::ListAppProfilesRequest>(message)?.parent, Permission::ListAppProfiles)
        }
        "UpdateAppProfile" => {
            let named = decode::<admin::UpdateAppProfileRequest>(message)?.app_profile.unwrap_or_default();
            of_instance(&named.name, Permission::UpdateAppProfile)
        }
        "DeleteAppProfile" => {
            of_instance(&decode::<admin::DeleteAppProfileRequest>(message)?.name, Permission::DeleteAppProfile)
        }
        _ => need_for_policies(method, message),
    }
}

fn need_for_policies(method: &str, message: &Bytes) -> Result<Need, Error> {
    match method {
        "GetIamPolicy" => Ok(match decode::<iam::GetIamPolicyRequest>(message)?.resource.parse()? {
            Resource::Instance(name) => Need::Instance(name, Permission::GetInstancePolicy),
            Resource::Table(name) | Resource::Family(name, _) => {
                Need::Table(name, Permission::GetTablePolicy, Families::None)
            }
            Resource::View(name) => Need::View(name, Permission::GetViewPolicy),
        }),
        "SetIamPolicy" => Ok(match decode::<iam::SetIamPolicyRequest>(message)?.resource.parse()? {
            Resource::Instance(name) => Need::Instance(name, Permission::SetInstancePolicy),
            Resource::Table(name) => Need::Table(name, Permission::SetTablePolicy, Families::None),
            Resource::View(name) => Need::View(name, Permission::SetViewPolicy),
            Resource::Family(name, family) => {
                Need::Table(name, Permission::SetTablePolicy, Families::Change(vec![family.as_str().to_owned()]))
            }
        }),
        "TestIamPermissions" => {
            let request: iam::TestIamPermissionsRequest = decode(message)?;
            if request.permissions.len() > PERMISSIONS_MAX {
                return Err(Error::invalid(format!(
                    "more than {PERMISSIONS_MAX} permissions: test them in several calls"
                )));
            }
            Ok(Need::Test(Box::new(request)))
        }
        _ => Ok(Need::Administrator),
    }
}

/// Operations belong to the resource that their name contains, `operations/projects/P/instances/I/tables/T/…/operations/N`: the table if
/// there is one, and otherwise the instance. So a caller who may change a table alone can see what became of the change.
fn need_for_operations(method: &str, message: &Bytes) -> Result<Need, Error> {
    const SEE: (Permission, Permission) = (Permission::GetInstance, Permission::GetTable);
    const CHANGE: (Permission, Permission) = (Permission::UpdateInstance, Permission::UpdateTable);
    let (name, (of_whole, of_table)) = match method {
        "GetOperation" => (decode::<longrunning::GetOperationRequest>(message)?.name, SEE),
        "WaitOperation" => (decode::<longrunning::WaitOperationRequest>(message)?.name, SEE),
        "ListOperations" => (decode::<longrunning::ListOperationsRequest>(message)?.name, SEE),
        "CancelOperation" => (decode::<longrunning::CancelOperationRequest>(message)?.name, CHANGE),
        "DeleteOperation" => (decode::<longrunning::DeleteOperationRequest>(message)?.name, CHANGE),
        _ => return Ok(Need::Administrator),
    };
    let name = name.strip_prefix("operations/").unwrap_or_default();
    let parts: Vec<_> = name.split('/').take(6).collect();
    match parts.as_slice() {
        ["projects", project, "instances", instance, "tables", table] => {
            Ok(Need::Table(TableName::from_parts(project, instance, table)?, of_table, Families::None))
        }
        _ => of_instance(name, of_whole),
    }
}

/// A permission for the instance whose name begins `name`. What names no single instance needs an administrator.
fn of_instance(name: &str, permission: Permission) -> Result<Need, Error> {
    let parts: Vec<_> = name.split('/').take(4).collect();
    match parts.as_slice() {
        ["projects", project, "instances", instance] if *instance != "-" && *project != "-" => {
            Ok(Need::Instance(InstanceName::from_parts(project, instance)?, permission))
        }
        _ => Ok(Need::Administrator),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "/google.bigtable.admin.v2.BigtableTableAdmin/";
    const TABLE: &str = "projects/p/instances/i/tables/t";

    fn of(path: &str, message: &impl Message) -> Need {
        need(path, &message.encode_to_vec().into()).unwrap()
    }

    fn instance(permission: Permission) -> Need {
        Need::Instance("projects/p/instances/i".parse().unwrap(), permission)
    }

    #[test]
    fn each_served_call_needs_a_right() {
        for service in CATALOGUE.iter().filter(|service| service.name != "google.bigtable.v2.Bigtable") {
            for call in service.calls {
                // An empty message names nothing.
                let need = need(&format!("/{}/{}", service.name, call.name), &Bytes::new());
                match (call.instead, call.name) {
                    (Some(_), _) => assert_eq!(need, Ok(Need::Identity), "{}", call.name),
                    (None, "TestIamPermissions") => assert!(matches!(need, Ok(Need::Test(_)))),
                    (None, _) => assert!(!matches!(need, Ok(Need::Identity | Need::Test(_))), "{}", call.name),
                }
            }
        }
        for path in ["", "/", "/x", "/ebla.operate.Operate/Status", "/unknown.Service/Method"] {
            assert_eq!(need(path, &Bytes::new()), Ok(Need::Administrator), "{path}");
        }
    }

    #[test]
    fn a_view_is_changed_with_rights_for_its_table() {
        let name = format!("{TABLE}/authorizedViews/v");
        let of_table = |permission| {
            let need = Need::ViewOfTable(name.parse().unwrap(), permission);
            assert_eq!(need.resource(), name, "what is recorded");
            need
        };
        let create = admin::CreateAuthorizedViewRequest {
            parent: TABLE.to_owned(),
            authorized_view_id: "v".to_owned(),
            ..Default::default()
        };
        assert_eq!(of(&format!("{TABLES}CreateAuthorizedView"), &create), of_table(Permission::CreateView));
        let named = Some(admin::AuthorizedView { name: name.clone(), ..Default::default() });
        let update = admin::UpdateAuthorizedViewRequest { authorized_view: named, ..Default::default() };
        assert_eq!(of(&format!("{TABLES}UpdateAuthorizedView"), &update), of_table(Permission::UpdateView));
        let delete = admin::DeleteAuthorizedViewRequest { name: name.clone(), ..Default::default() };
        assert_eq!(of(&format!("{TABLES}DeleteAuthorizedView"), &delete), of_table(Permission::DeleteView));
        let get = admin::GetAuthorizedViewRequest { name: name.clone(), ..Default::default() };
        let expected = Need::View(name.parse().unwrap(), Permission::GetView);
        assert_eq!(of(&format!("{TABLES}GetAuthorizedView"), &get), expected);
        let set = iam::SetIamPolicyRequest { resource: name.clone(), ..Default::default() };
        let expected = Need::View(name.parse().unwrap(), Permission::SetViewPolicy);
        assert_eq!(of(&format!("{TABLES}SetIamPolicy"), &set), expected);
    }

    #[test]
    fn a_heat_map_shows_the_keys_of_all_rows() {
        let heat = operate::GetKeyHeatRequest { table: TABLE.to_owned(), ..Default::default() };
        let expected = Need::Table(TABLE.parse().unwrap(), Permission::ReadRows, Families::ReadAll);
        assert_eq!(of("/ebla.operate.Operate/GetKeyHeat", &heat), expected);
        let system = operate::GetKeyHeatRequest { table: TableName::heat().to_string(), ..Default::default() };
        assert!(need("/ebla.operate.Operate/GetKeyHeat", &system.encode_to_vec().into()).is_err(), "no user names it");
        let parent = "projects/p/instances/i/clusters/c".to_owned();
        let hot = admin::ListHotTabletsRequest { parent, ..Default::default() };
        assert_eq!(of(HOT_TABLETS, &hot), instance(Permission::ListHotTablets));
    }

    #[test]
    fn rights_are_for_the_named_resource() {
        let parent = "projects/p/instances/i".to_owned();
        let request = admin::ListTablesRequest { parent, ..Default::default() };
        assert_eq!(of(&format!("{TABLES}ListTables"), &request), instance(Permission::ListTables));
        let all = admin::ListTablesRequest { parent: "projects/p/instances/-".to_owned(), ..Default::default() };
        assert_eq!(of(&format!("{TABLES}ListTables"), &all), Need::Administrator);
        let drop = admin::DropRowRangeRequest { name: TABLE.to_owned(), ..Default::default() };
        let expected = Need::Table(TABLE.parse().unwrap(), Permission::MutateRows, Families::WriteAll);
        assert_eq!(of(&format!("{TABLES}DropRowRange"), &drop), expected);
        let resource = format!("{TABLE}/columnFamilies/f");
        let set = iam::SetIamPolicyRequest { resource, ..Default::default() };
        let families = Families::Change(vec!["f".to_owned()]);
        let expected = Need::Table(TABLE.parse().unwrap(), Permission::SetTablePolicy, families);
        assert_eq!(of(&format!("{TABLES}SetIamPolicy"), &set), expected);
        let name = format!("operations/{TABLE}/operations/7");
        let get = longrunning::GetOperationRequest { name };
        let expected = Need::Table(TABLE.parse().unwrap(), Permission::GetTable, Families::None);
        assert_eq!(of("/google.longrunning.Operations/GetOperation", &get), expected);
        let name = "operations/projects/p/instances/i/operations/7".to_owned();
        let get = longrunning::GetOperationRequest { name };
        assert_eq!(of("/google.longrunning.Operations/GetOperation", &get), instance(Permission::GetInstance));
        let every = longrunning::ListOperationsRequest { name: "operations".to_owned(), ..Default::default() };
        assert_eq!(of("/google.longrunning.Operations/ListOperations", &every), Need::Administrator);
    }
}
