//! Access control of the public API: who calls, and what the caller may do.
//!
//! ```text
//!   layer         headers -> Caller             before the body is read: a token, or the name in a client certificate
//!   limits        what an identity uses, counted before the body is read
//!   data          Validated -> Authorized       the only way from a validated data request to its content
//!   admin         call to forward -> AuthorizedCall    the only argument that the master's client takes
//!   hot_tablets   what a caller sees of an answer about all tables of an instance
//!   scope         what a caller may touch of a table: families, and the view that a request names
//!   tablets       what a mounttable may do that calls tablets directly
//!   records       whose operations a caller may see in traces
//!   ReadGuard     each message of a read        a right that was lost, or a token that has expired, ends the read
//! ```
//!
//! A request reaches the cluster through these types alone, so a handler without a check does not compile. Access control is off unless the
//! server is configured with keys of tokens; then every caller may do everything, and no policy is read.
//!
//! Policies are those of the directory's snapshot, which a watch keeps up to date; while Chubby is unavailable the last ones hold.
//!
//! Families that the caller may not read are removed by a filter in front of the caller's own. So tablets evaluate filters, predicates and
//! limits on readable cells only, wherever they are evaluated.

mod admin;
mod audit;
mod audit_file;
mod data;
mod hot_tablets;
mod keys;
mod layer;
mod limits;
mod records;
mod scope;
mod tablets;
mod tokens;

use std::sync::Arc;

use ebla_model::access::{Identity, Member, Permission, Policy, Rules, ViewName};
use ebla_model::{Error, InstanceName, Micros, Reason};
use ebla_routing::{ChubbyDirectory, TablePolicies};
use ebla_runtime::{Clock, Runtime};
use tonic::Extensions;
use tracing::warn;

use self::audit::{AuditLog, Decision};
use self::limits::{CallMeter, Exceeded, IdentityMeter};
pub(crate) use self::tablets::{TabletCall, TabletCaller};
use self::tokens::TokenVerifier;
pub(super) use self::{
    admin::{AdminOutcome, AuthorizedCall},
    data::{Authorized, Permit, ReadGuard},
    layer::Metering,
    records::RecordRights,
};
pub use self::{
    audit::{AuditOptions, AuditedData},
    audit_file::AuditRotation,
    limits::IdentityLimits,
    tokens::TokenOptions,
};
use super::validate::Named;

/// The configuration of access control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessOptions {
    /// Which tokens are valid.
    pub tokens: TokenOptions,
    /// Callers that may do everything; without one no caller could write the first policy.
    pub administrators: Vec<Member>,
    /// The records of what was decided.
    pub audit: AuditOptions,
    /// What one identity may use.
    pub limits: IdentityLimits,
}

/// Decides about calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct AccessControl {
    /// `None`: off.
    enforced: Option<Arc<Enforced>>,
    /// The source of schemas, policies and views; `None`: in tests without a cluster.
    directory: Option<ChubbyDirectory>,
}

#[derive(Debug)]
struct Enforced {
    tokens: Arc<TokenVerifier>,
    administrators: Vec<Member>,
    directory: ChubbyDirectory,
    clock: Clock,
    audit: AuditLog,
    meter: IdentityMeter,
}

/// Who calls; in the extensions of a request.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// Access control is off.
    Anybody,
    /// A caller with an identity.
    Known(KnownCaller),
}

/// A caller whose identity is verified.
#[derive(Clone, Debug)]
pub(super) struct KnownCaller {
    identity: Arc<Identity>,
    /// When the identity is not proved any more; `None`: it ends with the connection.
    expiry: Option<Micros>,
    /// For records: where the call comes from, and what identifies it.
    peer: String,
    request: String,
}

impl AccessControl {
    /// No access control, and no views.
    pub(super) const fn off() -> Self {
        Self { enforced: None, directory: None }
    }

    /// Access control with these options; `None`: none. `directory`: the source of schemas and policies.
    ///
    /// # Errors
    /// `InvalidArgument` when the options are incomplete, or a file cannot be used.
    pub(super) fn start(
        options: Option<AccessOptions>,
        directory: &ChubbyDirectory,
        runtime: &Runtime,
    ) -> Result<Self, Error> {
        let Some(AccessOptions { tokens, administrators, audit, limits }) = options else {
            return Ok(Self { enforced: None, directory: Some(directory.clone()) });
        };
        if administrators.is_empty() {
            return Err(Error::invalid("access control needs an administrator: nobody could write the first policy"));
        }
        if administrators.contains(&Member::AllAuthenticatedUsers) {
            return Err(Error::invalid("allAuthenticatedUsers cannot be an administrator"));
        }
        if runtime.net.tls().is_none() {
            warn!(
                "access control without TLS: tokens can be read on the way, and the services between servers accept everybody who \
                 reaches them; give the files of TLS (--tls-ca, --tls-cert, --tls-key)"
            );
        }
        let enforced = Enforced {
            tokens: TokenVerifier::start(tokens, runtime)?,
            administrators,
            directory: directory.clone(),
            clock: runtime.clock.clone(),
            audit: AuditLog::start(audit, runtime)?,
            meter: IdentityMeter::new(limits, runtime.clock.clone()),
        };
        Ok(Self { enforced: Some(Arc::new(enforced)), directory: Some(directory.clone()) })
    }

    /// Counts a call of an identity with limits, until the result is dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` when a limit is reached.
    fn begin(&self, caller: &Caller, method: &str) -> Result<Option<CallMeter>, Exceeded> {
        let (Some(enforced), Caller::Known(caller)) = (&self.enforced, caller) else { return Ok(None) };
        if enforced.rules(None, None).is_administrator(&caller.identity) {
            return Ok(None);
        }
        let begun = enforced.meter.begin(caller.identity.name());
        if let Err(exceeded) = &begun {
            enforced.audit.record_exceeded(caller, method, Decision::Refused(exceeded.error.reason));
        }
        begun
    }

    /// Who sends a request, as its [`Middleware`](crate::middleware::Middleware) has determined it.
    ///
    /// # Errors
    /// `Unauthenticated` when it did not: the service is not wrapped.
    pub(super) fn caller(&self, extensions: &Extensions) -> Result<Caller, Error> {
        match (&self.enforced, extensions.get::<Caller>()) {
            (None, _) => Ok(Caller::Anybody),
            (Some(_), Some(caller @ Caller::Known(_))) => Ok(caller.clone()),
            (Some(_), _) => Err(Error::new(Reason::Unauthenticated, "the caller is unknown")),
        }
    }

    /// Checks a permission for an instance.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(super) fn check_instance(
        &self,
        caller: &Caller,
        instance: &InstanceName,
        permission: Permission,
    ) -> Result<(), Error> {
        let Some((enforced, caller)) = self.enforced(caller)? else { return Ok(()) };
        let policy = enforced.directory.instance_policy(instance.project(), instance.instance());
        let decided = if enforced.rules(policy.as_deref(), None).grants(permission, &caller.identity) {
            Ok(())
        } else {
            Err(denied(permission, instance))
        };
        enforced.audit.record_data(caller, permission.name(), &instance.to_string(), &[], Decision::of(&decided));
        decided
    }

    /// What enforces access, and the caller; `None`: access control is off.
    ///
    /// # Errors
    /// `Unauthenticated` when the caller has no identity although access control is on.
    fn enforced<'a>(&'a self, caller: &'a Caller) -> Result<Option<(&'a Enforced, &'a KnownCaller)>, Error> {
        match (&self.enforced, caller) {
            (None, _) => Ok(None),
            (Some(enforced), Caller::Known(caller)) => Ok(Some((enforced, caller))),
            (Some(_), Caller::Anybody) => Err(Error::new(Reason::Unauthenticated, "the caller is unknown")),
        }
    }
}

impl Enforced {
    fn rules<'a>(&'a self, instance: Option<&'a Policy>, policies: Option<&'a TablePolicies>) -> Rules<'a> {
        let table = policies.and_then(|policies| policies.table.as_ref());
        let table = table.and_then(|(_schema, access)| access.as_deref());
        let view = policies.and_then(|policies| policies.view.as_deref()).map(|view| &view.policy);
        Rules { administrators: &self.administrators, instance, table, view }
    }

    fn rules_of<'a>(&'a self, policies: &'a TablePolicies) -> Rules<'a> {
        self.rules(policies.instance.as_deref(), Some(policies))
    }

    /// The policies of a table, or of a view of it, for a caller that has all of these permissions for it.
    ///
    /// A table or view that this server does not know yet is read from Chubby for callers with these permissions by other policies only. For
    /// others a missing one is answered like one without permission, as quickly.
    ///
    /// # Errors
    /// `PermissionDenied`; `Unavailable` when the view is not known and Chubby is unavailable.
    async fn granted_policies(
        &self,
        caller: &KnownCaller,
        named: &Named,
        permissions: &[Permission],
    ) -> Result<TablePolicies, Error> {
        let view = named.view.as_ref();
        let known = self.directory.known_table_policies(&named.table, view);
        self.check_all(caller, named, permissions, &known)?;
        if known.table.is_some() && (view.is_none() || known.view.is_some()) {
            return Ok(known);
        }
        let policies = match self.directory.table_policies(&named.table, view).await {
            Ok(policies) => policies,
            Err(error) if view.is_some() => return Err(error),
            // Without Chubby the table stays unknown, and the permit is for no table.
            Err(_unavailable) => known,
        };
        self.check_all(caller, named, permissions, &policies)?;
        Ok(policies)
    }

    fn check_all(
        &self,
        caller: &KnownCaller,
        named: &Named,
        permissions: &[Permission],
        policies: &TablePolicies,
    ) -> Result<(), Error> {
        let rules = self.rules_of(policies);
        let missing = permissions.iter().find(|permission| !rules.grants(**permission, &caller.identity));
        missing.map_or(Ok(()), |permission| Err(denied(*permission, named)))
    }

    /// Checks that the caller's identity is still proved.
    fn check_expiry(&self, caller: &KnownCaller) -> Result<(), Error> {
        match caller.expiry {
            Some(expiry) if self.clock.wall() >= expiry => {
                Err(Error::new(Reason::Unauthenticated, "the token has expired: request a new one"))
            }
            _ => Ok(()),
        }
    }
}

/// The answer to a caller that may know it.
fn view_not_found(name: &ViewName) -> Error {
    Error::new(Reason::NotFound, format!("authorized view {name} does not exist"))
}

/// The refusal. It is the same for a resource that exists and for one that does not.
fn denied(permission: Permission, resource: &impl std::fmt::Display) -> Error {
    Error::new(
        Reason::PermissionDenied,
        format!("permission {permission} is denied on {resource}, or the resource does not exist"),
    )
}
