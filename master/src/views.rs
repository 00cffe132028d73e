//! Authorized views: files of Chubby beside the schema of their table, each with the policy of the view. The etag is the revision of the last
//! write, which may be one of the policy.
//!
//! A view belongs to a table by its id, and is deleted with it. While a view is protected, its table cannot be deleted.
//!
//! Every server has a copy of all views, so their size is bounded, with what each adds to a list: [`TABLE_BYTES_MAX`] for a table,
//! [`ALL_BYTES_MAX`] together.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_chubby::{Compare, File, Revision, TransactionOutcome, Write, paths};
use ebla_model::access::{AuthorizedView, Policy, ViewName};
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::schema::{Protection, TableName, TableSchema};
use ebla_proto::admin;
use ebla_proto::admin::authorized_view::ResponseView;
use ebla_proto::convert;
use ebla_proto::convert::access::policy_etag;
use ebla_proto::convert::view::{update_view, view_from_bytes, view_to_admin, view_to_bytes};
use tracing::info;

use crate::active::ActiveMaster;
use crate::jobs::update_schema::find_active;
use crate::schema_store::Stored;

/// The most bytes of the views of a table, as stored.
const TABLE_BYTES_MAX: usize = 4 << 20;
/// The most bytes of all views of the cluster, as stored: Chubby lists 64 MiB of files at most.
const ALL_BYTES_MAX: usize = 16 << 20;
/// What a file adds to a list of Chubby beside its path and its value: revisions and lengths. It bounds the number of small views too.
const FILE_BYTES: usize = 128;
/// Deletions in a transaction, far below the limit of etcd.
const CHUNK: usize = 50;

/// A stored view.
struct StoredView {
    path: String,
    modified: Revision,
    value: Bytes,
    /// The view; an error when this release cannot read it.
    view: Result<AuthorizedView, Error>,
}

impl StoredView {
    fn new(file: File) -> Self {
        Self { modified: file.modified, view: view_from_bytes(file.value.clone()), value: file.value, path: file.path }
    }

    fn readable(&self) -> Result<&AuthorizedView, Error> {
        self.view.as_ref().map_err(Clone::clone)
    }

    fn is_protected(&self) -> bool {
        self.view.as_ref().is_ok_and(|view| view.protection == Protection::On)
    }

    fn unchanged(&self) -> Compare {
        Compare::Modified(self.path.clone(), self.modified)
    }
}

fn not_found(name: &ViewName) -> Error {
    Error::new(Reason::NotFound, format!("authorized view {name} does not exist"))
}

fn etag(modified: Revision) -> String {
    modified.get().to_string()
}

/// # Errors
/// `Conflict` when a request has an etag that is not the current one.
fn check_etag(name: &ViewName, given: &str, modified: Revision) -> Result<(), Error> {
    if given.is_empty() || given == etag(modified) {
        return Ok(());
    }
    let message = format!("authorized view {name} has changed: get it again, and change the new one");
    Err(Error::new(Reason::Conflict, message))
}

async fn find(master: &ActiveMaster, name: &ViewName) -> Result<(Stored<TableSchema>, StoredView), Error> {
    let schema = find_active(master.chubby(), name.table()).await?;
    let file = master.chubby().read(&paths::view(schema.value.table, name.id())).await?;
    Ok((schema, StoredView::new(file.ok_or_else(|| not_found(name))?)))
}

async fn list_of(master: &ActiveMaster, table: TableId) -> Result<Vec<StoredView>, Error> {
    let (files, _revision) = master.chubby().list(&paths::views(table)).await?;
    Ok(files.into_iter().map(StoredView::new).collect())
}

/// Checks the families of a view: those that it names must exist, so that a mistake in a name is noticed.
fn check_families(view: &AuthorizedView, schema: &TableSchema) -> Result<(), Error> {
    view.subset.families().try_for_each(|(family, _columns)| schema.require_family(family.as_str()).map(drop))
}

/// Checks that there is room for a file of this size in the place of the one at `path`.
async fn check_room(master: &ActiveMaster, table: TableId, path: &str, size: usize) -> Result<(), Error> {
    let (files, _revision) = master.chubby().list(paths::VIEWS).await?;
    let others = files.iter().filter(|file| file.path != path);
    let others = others.map(|file| (file.path.as_str(), cost(&file.path, file.value.len())));
    check_sizes(others, &paths::views(table), cost(path, size))
}

/// The bytes of a file in a list of Chubby.
const fn cost(path: &str, value: usize) -> usize {
    path.len() + value + FILE_BYTES
}

/// `others`: paths and sizes of all other views. `folder`: that of the views of the table.
fn check_sizes<'a>(others: impl Iterator<Item = (&'a str, usize)>, folder: &str, size: usize) -> Result<(), Error> {
    let (of_table, all) = others.fold((size, size), |(of_table, all), (path, size)| {
        (if path.starts_with(folder) { of_table + size } else { of_table }, all + size)
    });
    let exhausted = |what: &str, sum: usize, limit: usize| {
        let message = format!("the authorized views of {what} would have {sum} bytes, the limit is {limit}");
        Err(Error::new(Reason::ResourceExhausted, message))
    };
    if of_table > TABLE_BYTES_MAX {
        return exhausted("the table", of_table, TABLE_BYTES_MAX);
    }
    if all > ALL_BYTES_MAX {
        return exhausted("all tables", all, ALL_BYTES_MAX);
    }
    Ok(())
}

/// The view as a message with the fields of `shown`.
///
/// # Errors
/// `NotFoundTable`, `NotFound`; `DataDamaged` when this release cannot read the view; errors of Chubby.
pub(crate) async fn get(
    master: &ActiveMaster,
    name: &ViewName,
    shown: ResponseView,
) -> Result<admin::AuthorizedView, Error> {
    let (_schema, stored) = find(master, name).await?;
    Ok(view_to_admin(name, stored.readable()?, etag(stored.modified), shown))
}

/// The views of a table, by name. Of a view that this release cannot read there is the name only.
///
/// # Errors
/// `NotFoundTable`; errors of Chubby.
pub(crate) async fn list(
    master: &ActiveMaster,
    table: &TableName,
    shown: ResponseView,
) -> Result<BTreeMap<String, admin::AuthorizedView>, Error> {
    let schema = find_active(master.chubby(), table).await?;
    let mut views = BTreeMap::new();
    for stored in list_of(master, schema.value.table).await? {
        let Some((_table, id)) = paths::parse_view(&stored.path) else { continue };
        let name = ViewName::new(table.clone(), id)?;
        let message = match &stored.view {
            Ok(view) => view_to_admin(&name, view, etag(stored.modified), shown),
            Err(_damaged) => {
                view_to_admin(&name, &AuthorizedView::unreadable(), etag(stored.modified), ResponseView::NameOnly)
            }
        };
        views.insert(name.to_string(), message);
    }
    Ok(views)
}

/// Creates a view.
///
/// # Errors
/// `AlreadyExists`; `NotFoundTable`, `NotFoundFamily`; `ResourceExhausted` when the views are too large together.
pub(crate) async fn create(
    master: &ActiveMaster,
    name: &ViewName,
    view: &AuthorizedView,
) -> Result<admin::AuthorizedView, Error> {
    let value = view_to_bytes(view)?;
    loop {
        let schema = find_active(master.chubby(), name.table()).await?;
        let table = schema.value.table;
        let path = paths::view(table, name.id());
        if master.chubby().read(&path).await?.is_some() {
            return Err(Error::new(Reason::AlreadyExists, format!("authorized view {name} already exists")));
        }
        check_families(view, &schema.value)?;
        check_room(master, table, &path, value.len()).await?;
        let compares = vec![Compare::Absent(path.clone()), same_schema(&schema)];
        if let TransactionOutcome::Committed(revision) =
            master.commit_intent(compares, writes(Write::put(path, value.clone()), view, &schema)).await?
        {
            info!(%name, "authorized view created");
            return Ok(view_to_admin(name, view, etag(revision), ResponseView::Full));
        }
    }
}

/// The table is the same and is not being deleted: otherwise the view would be left when it is gone.
fn same_schema(schema: &Stored<TableSchema>) -> Compare {
    Compare::Modified(paths::table(schema.value.table), schema.modified)
}

/// The writes that store a view. A protected one writes the schema of its table again: a deletion of the table that has begun then has to
/// look at the views once more.
fn writes(file: Write, view: &AuthorizedView, schema: &Stored<TableSchema>) -> Vec<Write> {
    let again = (view.protection == Protection::On)
        .then(|| Write::put(paths::table(schema.value.table), convert::schema_to_bytes(&schema.value)));
    [file].into_iter().chain(again).collect()
}

/// Updates the fields that `mask` names.
///
/// # Errors
/// As [`create`]; `NotFound`; `Conflict` when the update has an etag that is not current; those of [`update_view`].
pub(crate) async fn update(
    master: &ActiveMaster,
    name: &ViewName,
    update: &admin::AuthorizedView,
    mask: &[String],
) -> Result<admin::AuthorizedView, Error> {
    loop {
        let (schema, stored) = find(master, name).await?;
        check_etag(name, &update.etag, stored.modified)?;
        let next = update_view(stored.readable()?, update, mask)?;
        // A family may have been dropped since; that must not prevent other changes.
        if next.subset != stored.readable()?.subset {
            check_families(&next, &schema.value)?;
        }
        if let Some(revision) = replace(master, &schema, &stored, &next).await? {
            info!(%name, "authorized view updated");
            return Ok(view_to_admin(name, &next, etag(revision), ResponseView::Full));
        }
    }
}

/// Replaces a view; `None`: it or the table has changed meanwhile. A view that stays as it is is not written again: etcd keeps old versions.
async fn replace(
    master: &ActiveMaster,
    schema: &Stored<TableSchema>,
    stored: &StoredView,
    next: &AuthorizedView,
) -> Result<Option<Revision>, Error> {
    let value = view_to_bytes(next)?;
    if value == stored.value {
        return Ok(Some(stored.modified));
    }
    // What makes a view smaller, such as the removal of a member, needs no room.
    if value.len() > stored.value.len() {
        check_room(master, schema.value.table, &stored.path, value.len()).await?;
    }
    let compares = vec![stored.unchanged(), same_schema(schema)];
    let writes = writes(Write::put(stored.path.clone(), value), next, schema);
    let outcome = master.commit_intent(compares, writes).await?;
    Ok(match outcome {
        TransactionOutcome::Committed(revision) => Some(revision),
        TransactionOutcome::Conflict => None,
    })
}

/// Deletes a view with its policy, also one that this release cannot read.
///
/// # Errors
/// `NotFoundTable`, `NotFound`; `Conflict` when the etag is not current; `FailedPrecondition` when the view is protected.
pub(crate) async fn delete(master: &ActiveMaster, name: &ViewName, given: &str) -> Result<(), Error> {
    loop {
        let (_schema, stored) = find(master, name).await?;
        check_etag(name, given, stored.modified)?;
        if stored.is_protected() {
            let message = format!("authorized view {name} is protected against deletion");
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        let writes = vec![Write::delete(stored.path.clone())];
        if let TransactionOutcome::Committed(_) = master.commit_intent(vec![stored.unchanged()], writes).await? {
            info!(%name, "authorized view deleted");
            return Ok(());
        }
    }
}

/// The policy of a view, and its etag.
///
/// # Errors
/// As [`get`].
pub(crate) async fn policy(master: &ActiveMaster, name: &ViewName) -> Result<(Policy, Bytes), Error> {
    let (_schema, stored) = find(master, name).await?;
    Ok((stored.readable()?.policy.clone(), policy_etag(Some(stored.modified.get()))))
}

/// Replaces the policy of a view; returns the new etag. `given`: the etag of the request, if it has one.
///
/// # Errors
/// As [`get`]; `Conflict` when the etag is not current; `InvalidArgument` when the policy is too large; `ResourceExhausted` as in [`create`].
pub(crate) async fn set_policy(
    master: &ActiveMaster,
    name: &ViewName,
    policy: &Policy,
    given: &Bytes,
) -> Result<Bytes, Error> {
    loop {
        let (schema, stored) = find(master, name).await?;
        if !given.is_empty() && *given != policy_etag(Some(stored.modified.get())) {
            let message = format!("the policy of {name} has changed: get it again, and change the new one");
            return Err(Error::new(Reason::Conflict, message));
        }
        let next = AuthorizedView { policy: policy.clone(), ..stored.readable()?.clone() };
        if let Some(revision) = replace(master, &schema, &stored, &next).await? {
            info!(%name, "policy replaced");
            return Ok(policy_etag(Some(revision.get())));
        }
    }
}

/// Checks that no view of a table is protected.
///
/// # Errors
/// `FailedPrecondition`; errors of Chubby.
pub(crate) async fn check_unprotected(master: &ActiveMaster, schema: &TableSchema) -> Result<(), Error> {
    let views = list_of(master, schema.table).await?;
    let Some(protected) = views.iter().find(|stored| stored.is_protected()) else { return Ok(()) };
    let id = paths::parse_view(&protected.path).map_or("", |(_table, id)| id);
    let message = format!("table {} has an authorized view that is protected against deletion: {id}", schema.name);
    Err(Error::new(Reason::FailedPrecondition, message))
}

/// Deletes all views of a table that is being deleted. Safe to repeat.
///
/// # Errors
/// `NotMaster`; errors of Chubby.
pub(crate) async fn delete_all(master: &ActiveMaster, table: TableId) -> Result<(), Error> {
    let paths: Vec<_> = list_of(master, table).await?.into_iter().map(|stored| stored.path).collect();
    for chunk in paths.chunks(CHUNK) {
        master.transact(Vec::new(), chunk.iter().cloned().map(Write::delete).collect()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded_for_a_table_and_together() {
        let sizes = |others: &[(&str, usize)], size| check_sizes(others.iter().copied(), "views/7/", size);
        assert_eq!(sizes(&[("views/7/a", TABLE_BYTES_MAX - 10)], 10), Ok(()));
        let full = sizes(&[("views/7/a", TABLE_BYTES_MAX - 10)], 11).unwrap_err();
        assert_eq!(full.reason, Reason::ResourceExhausted);
        assert_eq!(sizes(&[("views/77/a", TABLE_BYTES_MAX)], 10), Ok(()), "another table");
        assert!(sizes(&[("views/77/a", ALL_BYTES_MAX - 10)], 11).is_err());
    }

    #[test]
    fn small_views_are_bounded_by_what_a_list_of_them_takes() {
        assert_eq!(cost("views/7/v", 4), 9 + 4 + FILE_BYTES);
    }

    #[test]
    fn a_view_that_cannot_be_read_is_not_protected() {
        let file = File {
            path: "views/7/v".to_owned(),
            value: Bytes::from_static(b"\xff"),
            created: Revision::ZERO,
            modified: Revision::new(3),
            lease: None,
        };
        let stored = StoredView::new(file);
        assert!(!stored.is_protected() && stored.readable().is_err(), "it can be deleted and not be changed");
    }

    #[test]
    fn etags_are_compared_if_given() {
        let name: ViewName = "projects/p/instances/i/tables/t/authorizedViews/v".parse().unwrap();
        assert!(check_etag(&name, "", Revision::new(3)).is_ok() && check_etag(&name, "3", Revision::new(3)).is_ok());
        assert_eq!(check_etag(&name, "2", Revision::new(3)).unwrap_err().reason, Reason::Conflict);
    }
}
