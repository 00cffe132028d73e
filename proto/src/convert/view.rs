//! Authorized views: as records of Chubby, and as messages of the public API.
//!
//! | limit | value | why |
//! |---|---|---|
//! | a view in a request, encoded | [`VIEW_BYTES_MAX`] | Chubby's files are small |
//! | row prefixes | [`ROW_PREFIXES_MAX`] | each read through the view has as many ranges of rows |
//! | the filter of its columns | [`VIEW_FILTER_BYTES_MAX`] | it is a part of the filter of each read, whose size is bounded |
//! | the policy, encoded | [`VIEW_POLICY_BYTES_MAX`] | it is in the file of the view |

use bytes::{Buf, Bytes};
use ebla_model::access::{AuthorizedView, FamilySet, FamilySubset, Policy, SubsetView, ViewName};
use ebla_model::schema::Protection;
use ebla_model::{Error, FamilyName};
use prost::Message as _;

use super::access::{policy_from_record, policy_to_record};
use super::filter_to_bytes;
use super::record::{decode_record, encode_record};
use crate::admin::authorized_view::{AuthorizedView as Kind, FamilySubsets, ResponseView, SubsetView as SubsetMessage};
use crate::{admin, record};

/// The largest view of a request, encoded.
pub const VIEW_BYTES_MAX: usize = 128 << 10;
/// The largest policy of a view, encoded as a record.
pub const VIEW_POLICY_BYTES_MAX: usize = 64 << 10;
/// The most row prefixes of a view.
pub const ROW_PREFIXES_MAX: usize = 1_000;
/// The largest filter of a view's columns, encoded.
pub const VIEW_FILTER_BYTES_MAX: usize = 8 << 10;
/// The longest row prefix, in bytes: that of a row key.
const ROW_PREFIX_BYTES_MAX: usize = 4_096;
/// The longest qualifier or prefix of one, in bytes.
const QUALIFIER_BYTES_MAX: usize = 16_384;

/// A view as stored in Chubby.
///
/// # Errors
/// `InvalidArgument` when its policy is too large.
pub fn view_to_bytes(view: &AuthorizedView) -> Result<Bytes, Error> {
    let policy = policy_to_record(&view.policy);
    let size = policy.encoded_len();
    if size > VIEW_POLICY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the policy of the authorized view has {size} bytes, the limit is {VIEW_POLICY_BYTES_MAX}: use groups"
        )));
    }
    let family = |(name, columns): (&FamilyName, &FamilySubset)| record::FamilySubset {
        family: name.as_str().to_owned(),
        qualifiers: columns.qualifiers().cloned().collect(),
        qualifier_prefixes: columns.prefixes().cloned().collect(),
    };
    Ok(encode_record(record::AuthorizedView {
        row_prefixes: view.subset.row_prefixes().cloned().collect(),
        families: view.subset.families().map(family).collect(),
        deletion_protection: view.protection == Protection::On,
        policy: Some(policy),
        ..Default::default()
    }))
}

/// A view as stored in Chubby.
///
/// # Errors
/// `DataDamaged` when a part is invalid, also a role that this release does not know.
pub fn view_from_bytes(bytes: impl Buf) -> Result<AuthorizedView, Error> {
    let message: record::AuthorizedView = decode_record(bytes)?;
    let damaged = |error: Error| Error::damaged(format!("authorized view: {error}"));
    let families = message.families.into_iter().map(|family| {
        let name = FamilyName::new(&family.family).map_err(damaged)?;
        Ok((name, FamilySubset::new(family.qualifiers, family.qualifier_prefixes)))
    });
    Ok(AuthorizedView {
        subset: SubsetView::new(message.row_prefixes, families.collect::<Result<Vec<_>, Error>>()?),
        protection: protection(message.deletion_protection),
        policy: policy_from_record(&message.policy.unwrap_or_default())?,
    })
}

/// The view that a request creates; it has no policy yet.
///
/// # Errors
/// `InvalidArgument` when it has no subset, or exceeds a [limit](self).
pub fn view_from_admin(message: &admin::AuthorizedView) -> Result<AuthorizedView, Error> {
    Ok(AuthorizedView {
        subset: subset_from_admin(message)?,
        protection: protection(message.deletion_protection),
        policy: Policy::default(),
    })
}

/// The view after an update: the fields in `mask` come from `update`; those that are set in `update` when the mask is empty, all for `*`.
///
/// # Errors
/// `InvalidArgument` for a field that does not exist or cannot be updated; else as [`view_from_admin`].
pub fn update_view(
    present: &AuthorizedView,
    update: &admin::AuthorizedView,
    mask: &[String],
) -> Result<AuthorizedView, Error> {
    let mut next = present.clone();
    let mut paths: Vec<&str> = mask.iter().map(String::as_str).collect();
    if paths.is_empty() {
        paths.extend(update.authorized_view.is_some().then_some("subset_view"));
        paths.extend(update.deletion_protection.then_some("deletion_protection"));
    }
    if paths.contains(&"*") {
        paths = vec!["subset_view", "deletion_protection"];
    }
    for path in paths {
        match path {
            "deletion_protection" => next.protection = protection(update.deletion_protection),
            "subset_view" => next.subset = subset_from_admin(update)?,
            "subset_view.row_prefixes" => {
                let given = subset_from_admin(update)?;
                next.subset = SubsetView::new(given.row_prefixes().cloned(), owned_families(&next.subset));
            }
            "subset_view.family_subsets" => {
                let given = subset_from_admin(update)?;
                next.subset = SubsetView::new(next.subset.row_prefixes().cloned(), owned_families(&given));
            }
            // Compared if present, never set.
            "etag" | "name" => {}
            path => {
                return Err(Error::invalid(format!(
                    "field {path:?} of an authorized view cannot be updated: expected subset_view, subset_view.row_prefixes, \
                     subset_view.family_subsets or deletion_protection"
                )));
            }
        }
    }
    Ok(next)
}

fn owned_families(subset: &SubsetView) -> Vec<(FamilyName, FamilySubset)> {
    subset.families().map(|(name, columns)| (name.clone(), columns.clone())).collect()
}

const fn protection(is_on: bool) -> Protection {
    if is_on { Protection::On } else { Protection::Off }
}

fn subset_from_admin(view: &admin::AuthorizedView) -> Result<SubsetView, Error> {
    let size = view.encoded_len();
    if size > VIEW_BYTES_MAX {
        return Err(Error::invalid(format!("the authorized view has {size} bytes, the limit is {VIEW_BYTES_MAX}")));
    }
    let Some(Kind::SubsetView(message)) = &view.authorized_view else {
        return Err(Error::invalid("an authorized view requires a subset_view"));
    };
    if message.row_prefixes.len() > ROW_PREFIXES_MAX {
        let count = message.row_prefixes.len();
        return Err(Error::invalid(format!(
            "the authorized view has {count} row prefixes, the limit is {ROW_PREFIXES_MAX}"
        )));
    }
    check_lengths(&message.row_prefixes, ROW_PREFIX_BYTES_MAX, "row_prefixes")?;
    let families = message.family_subsets.iter().map(|(name, columns)| {
        check_lengths(&columns.qualifiers, QUALIFIER_BYTES_MAX, "qualifiers")?;
        check_lengths(&columns.qualifier_prefixes, QUALIFIER_BYTES_MAX, "qualifier_prefixes")?;
        let columns = FamilySubset::new(columns.qualifiers.clone(), columns.qualifier_prefixes.clone());
        Ok((FamilyName::new(name)?, columns))
    });
    let subset = SubsetView::new(message.row_prefixes.clone(), families.collect::<Result<Vec<_>, Error>>()?);
    let filter = filter_to_bytes(&subset.filter(&FamilySet::All)).len();
    if filter > VIEW_FILTER_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the columns of the authorized view need a filter of {filter} bytes, the limit is {VIEW_FILTER_BYTES_MAX}: use prefixes"
        )));
    }
    Ok(subset)
}

fn check_lengths(texts: &[Bytes], bytes_max: usize, field: &str) -> Result<(), Error> {
    match texts.iter().map(Bytes::len).find(|length| *length > bytes_max) {
        Some(length) => {
            Err(Error::invalid(format!("{field} has an entry of {length} bytes, the limit is {bytes_max}")))
        }
        None => Ok(()),
    }
}

/// A view as a message with the fields of `shown`. `etag` identifies its version.
pub fn view_to_admin(
    name: &ViewName,
    view: &AuthorizedView,
    etag: String,
    shown: ResponseView,
) -> admin::AuthorizedView {
    let name_only = admin::AuthorizedView { name: name.to_string(), ..Default::default() };
    if shown == ResponseView::NameOnly {
        return name_only;
    }
    let basic = admin::AuthorizedView { etag, deletion_protection: view.protection == Protection::On, ..name_only };
    if shown == ResponseView::Basic {
        return basic;
    }
    let columns = |(name, columns): (&FamilyName, &FamilySubset)| {
        let subsets = FamilySubsets {
            qualifiers: columns.qualifiers().cloned().collect(),
            qualifier_prefixes: columns.prefixes().cloned().collect(),
        };
        (name.as_str().to_owned(), subsets)
    };
    let subset = SubsetMessage {
        row_prefixes: view.subset.row_prefixes().cloned().collect(),
        family_subsets: view.subset.families().map(columns).collect(),
    };
    admin::AuthorizedView { authorized_view: Some(Kind::SubsetView(subset)), ..basic }
}

/// What a request wants to see; `default`: if it does not say.
///
/// # Errors
/// `InvalidArgument` for an unknown number.
pub fn response_view(number: i32, default: ResponseView) -> Result<ResponseView, Error> {
    match ResponseView::try_from(number) {
        Ok(ResponseView::Unspecified) => Ok(default),
        Ok(view) => Ok(view),
        Err(_unknown) => Err(Error::invalid(format!("unknown view {number} of an authorized view"))),
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::Reason;
    use ebla_model::access::{Member, Role};

    use super::*;

    fn message() -> admin::AuthorizedView {
        let columns = FamilySubsets { qualifiers: vec!["a".into(), "b".into()], qualifier_prefixes: vec!["p".into()] };
        let subset =
            SubsetMessage { row_prefixes: vec!["r".into()], family_subsets: [("f".to_owned(), columns)].into() };
        admin::AuthorizedView { authorized_view: Some(Kind::SubsetView(subset)), ..Default::default() }
    }

    fn with_subset(change: impl FnOnce(&mut SubsetMessage)) -> admin::AuthorizedView {
        let mut message = message();
        let Some(Kind::SubsetView(subset)) = &mut message.authorized_view else { panic!("no subset") };
        change(subset);
        message
    }

    fn name() -> ViewName {
        "projects/p/instances/i/tables/t/authorizedViews/v".parse().unwrap()
    }

    #[test]
    fn views_survive_a_round_trip() {
        let mut view = view_from_admin(&admin::AuthorizedView { deletion_protection: true, ..message() }).unwrap();
        view.policy = Policy::new([(Role::Reader, Member::AllAuthenticatedUsers)]).unwrap();
        assert_eq!(view_from_bytes(view_to_bytes(&view).unwrap()), Ok(view.clone()));
        let shown = view_to_admin(&name(), &view, "7".to_owned(), ResponseView::Full);
        assert_eq!((shown.name, shown.etag), (name().to_string(), "7".to_owned()));
        assert_eq!(shown.authorized_view, message().authorized_view);
        let basic = view_to_admin(&name(), &view, "7".to_owned(), ResponseView::Basic);
        assert!(basic.authorized_view.is_none() && basic.deletion_protection);
        let name_only = view_to_admin(&name(), &view, "7".to_owned(), ResponseView::NameOnly);
        assert_eq!(name_only, admin::AuthorizedView { name: name().to_string(), ..Default::default() });
    }

    #[test]
    fn limits_hold() {
        assert!(view_from_admin(&admin::AuthorizedView::default()).is_err(), "no subset");
        let many = |count: usize, size: usize| {
            (0..count).map(|number| Bytes::from(format!("{number:0size$}"))).collect::<Vec<_>>()
        };
        assert!(view_from_admin(&with_subset(|subset| subset.row_prefixes = many(1_000, 100))).is_ok());
        let wrong: Vec<admin::AuthorizedView> = vec![
            with_subset(|subset| subset.row_prefixes = many(1_001, 4)),
            with_subset(|subset| subset.row_prefixes = many(1_000, 140)),
            with_subset(|subset| subset.row_prefixes = many(1, ROW_PREFIX_BYTES_MAX + 1)),
            with_subset(|subset| {
                let columns = FamilySubsets { qualifiers: many(1_000, 8), ..Default::default() };
                subset.family_subsets.insert("g".to_owned(), columns);
            }),
            with_subset(|subset| {
                subset.family_subsets.insert("not a name".to_owned(), FamilySubsets::default());
            }),
        ];
        for (index, wrong) in wrong.iter().enumerate() {
            assert_eq!(view_from_admin(wrong).unwrap_err().reason, Reason::InvalidArgument, "{index}");
        }
        let members = (0..1_000).map(|number| (Role::Reader, Member::Group(format!("{number:0100}"))));
        let view = AuthorizedView { policy: Policy::new(members).unwrap(), ..view_from_admin(&message()).unwrap() };
        assert_eq!(view_to_bytes(&view).unwrap_err().reason, Reason::InvalidArgument);
    }

    #[test]
    fn updates_change_the_named_fields() {
        let present = view_from_admin(&admin::AuthorizedView { deletion_protection: true, ..message() }).unwrap();
        let update = with_subset(|subset| {
            subset.row_prefixes = vec!["s".into()];
            subset.family_subsets.clear();
        });
        let updated = |update: &admin::AuthorizedView, mask: &[&str]| {
            let mask: Vec<_> = mask.iter().map(|path| (*path).to_owned()).collect();
            update_view(&present, update, &mask)
        };
        let whole = view_from_admin(&update).unwrap();
        assert_eq!(updated(&update, &["*"]), Ok(whole.clone()));
        let kept = AuthorizedView { protection: Protection::On, ..whole };
        assert_eq!(updated(&update, &[]), Ok(kept.clone()), "what is not set stays");
        assert_eq!(updated(&update, &["subset_view"]), Ok(kept));
        let rows = updated(&update, &["subset_view.row_prefixes"]).unwrap().subset;
        assert_eq!((rows.row_prefixes().count(), rows.families().count()), (1, 1));
        let columns = updated(&update, &["subset_view.family_subsets"]).unwrap().subset;
        assert_eq!((columns.row_prefixes().next().unwrap(), columns.families().count()), (&Bytes::from("r"), 0));
        let open = updated(&update, &["deletion_protection"]).unwrap();
        assert_eq!((open.protection, &open.subset), (Protection::Off, &present.subset));
        assert!(updated(&update, &["policy"]).is_err());
    }

    #[test]
    fn damage_is_no_view() {
        assert_eq!(view_from_bytes(&b"\xff"[..]).unwrap_err().reason, Reason::DataDamaged);
        let later = record::AuthorizedView { version: 99, ..Default::default() };
        assert_eq!(view_from_bytes(later.encode_to_vec().as_slice()).unwrap_err().reason, Reason::DataDamaged);
    }
}
