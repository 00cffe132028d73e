//! google.bigtable.admin.v2.BigtableInstanceAdmin: instances, clusters and app profiles. Every project and instance
//! exists without being created.

use std::collections::BTreeMap;

use ebla_model::admin::app_profile::AppProfileName;
use ebla_model::admin::instance::{Instance, InstanceName, Instances as Parent, ProjectName};
use ebla_model::error::{Error, Reason};
use ebla_proto::admin::{self, longrunning};
use ebla_proto::convert::app_profile::app_profile_from_admin;
use ebla_proto::convert::instance::{
    cluster_to_admin, instance_from_admin, instance_to_admin, timestamp, unsaid_instance_to_admin, update_cluster,
    update_instance,
};
use ebla_proto::services::bigtable_instance_admin_server::BigtableInstanceAdmin;
use tonic::{Request, Response, Status};

use super::handle::{MasterHandle, to_response};
use super::page::{PageRequest, page};
use super::policies;
use crate::active::ActiveMaster;
use crate::{heat, instances, operations, profiles};

/// The service, on an active master or a standby.
#[derive(Debug)]
pub(crate) struct Instances {
    handle: MasterHandle,
}

impl Instances {
    pub(crate) const fn new(handle: MasterHandle) -> Self {
        Self { handle }
    }

    async fn list(&self, request: admin::ListInstancesRequest) -> Result<admin::ListInstancesResponse, Error> {
        let project: ProjectName = request.parent.parse()?;
        let known = instances::list(&self.handle.active()?, &project).await?;
        let shown = known.iter().map(|(name, created)| instance(name, created.as_ref())).collect();
        Ok(admin::ListInstancesResponse { instances: shown, ..Default::default() })
    }

    async fn cluster(&self, name: &str) -> Result<admin::Cluster, Error> {
        let master = self.handle.active()?;
        let (of, id) = in_instance(name)?;
        let created = instances::find(&master, &of).await?;
        check_cluster(&of, id, created.as_ref())?;
        cluster_of(&master, &of, created.as_ref()).await
    }

    async fn clusters(&self, parent: &str) -> Result<admin::ListClustersResponse, Error> {
        let master = self.handle.active()?;
        let mut clusters = Vec::new();
        for (name, created) in &instances::select(&master, &parent.parse()?).await? {
            clusters.push(cluster_of(&master, name, created.as_ref()).await?);
        }
        Ok(admin::ListClustersResponse { clusters, ..Default::default() })
    }

    async fn profiles(&self, request: admin::ListAppProfilesRequest) -> Result<admin::ListAppProfilesResponse, Error> {
        let master = self.handle.active()?;
        let parent: Parent = request.parent.parse()?;
        let prefix = match &parent {
            Parent::One(name) => format!("{name}/appProfiles/"),
            Parent::All(project) => format!("{project}/instances/"),
        };
        let all = profiles::list(&master, &parent).await?;
        let named: BTreeMap<_, _> = all.into_iter().map(|profile| (profile.name.clone(), profile)).collect();
        let page_request = PageRequest { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (app_profiles, next_page_token) = page(named, page_request)?;
        Ok(admin::ListAppProfilesResponse { app_profiles, next_page_token, ..Default::default() })
    }

    async fn hot_tablets(&self, request: admin::ListHotTabletsRequest) -> Result<admin::ListHotTabletsResponse, Error> {
        let master = self.handle.active()?;
        let (of, id) = in_instance(&request.parent)?;
        check_cluster(&of, id, instances::find(&master, &of).await?.as_ref())?;
        let hottest = heat::list_hot_tablets(&master, &of, &request).await?;
        // The hottest first: a page continues at a rank.
        let prefix = format!("{}/hotTablets/", request.parent);
        let ranked: BTreeMap<_, _> =
            hottest.into_iter().enumerate().map(|(rank, tablet)| (format!("{prefix}{rank:06}"), tablet)).collect();
        let page_request = PageRequest { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (hot_tablets, next_page_token) = page(ranked, page_request)?;
        Ok(admin::ListHotTabletsResponse { hot_tablets, next_page_token })
    }
}

fn instance(name: &InstanceName, created: Option<&Instance>) -> admin::Instance {
    created.map_or_else(|| unsaid_instance_to_admin(name), instance_to_admin)
}

async fn cluster_of(
    master: &ActiveMaster,
    name: &InstanceName,
    created: Option<&Instance>,
) -> Result<admin::Cluster, Error> {
    Ok(cluster_to_admin(name, &instances::cluster(master, created).await?))
}

/// Splits a cluster's name into instance and id.
fn in_instance(cluster: &str) -> Result<(InstanceName, &str), Error> {
    let (of, id) = cluster.split_once("/clusters/").ok_or_else(|| {
        Error::invalid(format!("invalid cluster name {cluster:?}: expected projects/P/instances/I/clusters/C"))
    })?;
    Ok((of.parse()?, id))
}

fn check_cluster(of: &InstanceName, id: &str, created: Option<&Instance>) -> Result<(), Error> {
    let present = instances::cluster_name(created);
    if present == id {
        return Ok(());
    }
    let message = format!("cluster {id:?} does not exist in {of}: its only cluster is {present:?}");
    Err(Error::new(Reason::NotFound, message))
}

async fn create(master: ActiveMaster, request: admin::CreateInstanceRequest) -> Result<longrunning::Operation, Error> {
    let started = master.runtime().clock.wall();
    let project: ProjectName = request.parent.parse()?;
    let name = InstanceName::from_parts(project.id(), &request.instance_id)?;
    let instance = instance_from_admin(&request, name, started)?;
    instances::create(&master, &instance).await?;
    let metadata = admin::CreateInstanceMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(started)),
        finish_time: Some(timestamp(master.runtime().clock.wall())),
    };
    operations::store(&master, &instance.name.to_string(), &metadata, &instance_to_admin(&instance)).await
}

async fn update(
    master: ActiveMaster,
    request: admin::PartialUpdateInstanceRequest,
) -> Result<longrunning::Operation, Error> {
    let started = master.runtime().clock.wall();
    let wanted =
        request.instance.clone().ok_or_else(|| Error::invalid("instance is missing: name the one to update"))?;
    let name: InstanceName = wanted.name.parse()?;
    let mask = request.update_mask.clone().unwrap_or_default().paths;
    let updated = instances::update(&master, &name, |present| update_instance(present, &wanted, &mask)).await?;
    let metadata = admin::UpdateInstanceMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(started)),
        finish_time: Some(timestamp(master.runtime().clock.wall())),
    };
    operations::store(&master, &name.to_string(), &metadata, &instance_to_admin(&updated)).await
}

/// UpdateInstance has no mask: it sets the display name, and the type if one is given.
async fn replace(master: ActiveMaster, wanted: admin::Instance) -> Result<admin::Instance, Error> {
    let name: InstanceName = wanted.name.parse()?;
    let mask = ["display_name", "type"].map(str::to_owned);
    let updated = instances::update(&master, &name, |present| update_instance(present, &wanted, &mask)).await?;
    Ok(instance_to_admin(&updated))
}

/// Updates the only cluster of an instance.
async fn resize(master: &ActiveMaster, wanted: &admin::Cluster, mask: &[String]) -> Result<admin::Cluster, Error> {
    let (name, id) = in_instance(&wanted.name)?;
    check_cluster(&name, id, instances::find(master, &name).await?.as_ref())?;
    let change = |present: &Instance| {
        check_cluster(&name, id, Some(present))?;
        update_cluster(present, wanted, mask)
    };
    let updated = instances::update(master, &name, change).await?;
    Ok(cluster_to_admin(&name, &updated.cluster))
}

async fn update_whole_cluster(master: ActiveMaster, wanted: admin::Cluster) -> Result<longrunning::Operation, Error> {
    let started = master.runtime().clock.wall();
    let updated = resize(&master, &wanted, &["serve_nodes".to_owned()]).await?;
    let metadata = admin::UpdateClusterMetadata {
        original_request: Some(wanted),
        request_time: Some(timestamp(started)),
        finish_time: Some(timestamp(master.runtime().clock.wall())),
    };
    operations::store(&master, &updated.name, &metadata, &updated).await
}

async fn update_parts_of_cluster(
    master: ActiveMaster,
    request: admin::PartialUpdateClusterRequest,
) -> Result<longrunning::Operation, Error> {
    let started = master.runtime().clock.wall();
    let wanted = request.cluster.clone().ok_or_else(|| Error::invalid("cluster is missing: name the one to update"))?;
    let mask = request.update_mask.clone().unwrap_or_default().paths;
    let updated = resize(&master, &wanted, &mask).await?;
    let metadata = admin::PartialUpdateClusterMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(started)),
        finish_time: Some(timestamp(master.runtime().clock.wall())),
    };
    operations::store(&master, &updated.name, &metadata, &updated).await
}

async fn update_profile(
    master: ActiveMaster,
    request: admin::UpdateAppProfileRequest,
) -> Result<longrunning::Operation, Error> {
    let update = request.app_profile.ok_or_else(|| Error::invalid("app_profile is missing: name the one to update"))?;
    let name: AppProfileName = update.name.parse()?;
    let mask = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
    let profile = profiles::update(&master, &name, &update, &mask).await?;
    operations::store(&master, &profile.name, &admin::UpdateAppProfileMetadata {}, &profile).await
}

#[tonic::async_trait]
impl BigtableInstanceAdmin for Instances {
    async fn create_instance(
        &self,
        request: Request<admin::CreateInstanceRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| create(master, request)).await)
    }

    async fn get_instance(
        &self,
        request: Request<admin::GetInstanceRequest>,
    ) -> Result<Response<admin::Instance>, Status> {
        let outcome = async {
            let name: InstanceName = request.into_inner().name.parse()?;
            let created = instances::find(&self.handle.active()?, &name).await?;
            Ok(instance(&name, created.as_ref()))
        };
        to_response(outcome.await)
    }

    async fn list_instances(
        &self,
        request: Request<admin::ListInstancesRequest>,
    ) -> Result<Response<admin::ListInstancesResponse>, Status> {
        to_response(self.list(request.into_inner()).await)
    }

    async fn update_instance(&self, request: Request<admin::Instance>) -> Result<Response<admin::Instance>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| replace(master, request)).await)
    }

    async fn partial_update_instance(
        &self,
        request: Request<admin::PartialUpdateInstanceRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| update(master, request)).await)
    }

    async fn delete_instance(&self, request: Request<admin::DeleteInstanceRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let name: InstanceName = request.into_inner().name.parse()?;
            let delete = |master, deadline| async move { instances::delete(&master, &name, deadline).await };
            self.handle.run_change(delete).await
        };
        to_response(outcome.await)
    }

    async fn get_cluster(
        &self,
        request: Request<admin::GetClusterRequest>,
    ) -> Result<Response<admin::Cluster>, Status> {
        to_response(self.cluster(&request.into_inner().name).await)
    }

    async fn list_clusters(
        &self,
        request: Request<admin::ListClustersRequest>,
    ) -> Result<Response<admin::ListClustersResponse>, Status> {
        to_response(self.clusters(&request.into_inner().parent).await)
    }

    async fn update_cluster(
        &self,
        request: Request<admin::Cluster>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| update_whole_cluster(master, request)).await)
    }

    async fn partial_update_cluster(
        &self,
        request: Request<admin::PartialUpdateClusterRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| update_parts_of_cluster(master, request)).await)
    }

    async fn create_app_profile(
        &self,
        request: Request<admin::CreateAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name = AppProfileName::new(request.parent.parse()?, &request.app_profile_id)?;
            let profile = app_profile_from_admin(name, &request.app_profile.unwrap_or_default())?;
            let create = |master, _deadline| async move { profiles::create(&master, &profile).await };
            self.handle.run_change(create).await
        };
        to_response(outcome.await)
    }

    async fn get_app_profile(
        &self,
        request: Request<admin::GetAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        let outcome = async {
            let name = request.into_inner().name.parse()?;
            profiles::find(&self.handle.active()?, &name).await
        };
        to_response(outcome.await)
    }

    async fn list_app_profiles(
        &self,
        request: Request<admin::ListAppProfilesRequest>,
    ) -> Result<Response<admin::ListAppProfilesResponse>, Status> {
        to_response(self.profiles(request.into_inner()).await)
    }

    async fn update_app_profile(
        &self,
        request: Request<admin::UpdateAppProfileRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        to_response(self.handle.run_change(|master, _deadline| update_profile(master, request)).await)
    }

    async fn delete_app_profile(
        &self,
        request: Request<admin::DeleteAppProfileRequest>,
    ) -> Result<Response<()>, Status> {
        let outcome = async {
            let name = request.into_inner().name.parse()?;
            self.handle.run_change(|master, _deadline| async move { profiles::delete(&master, &name).await }).await
        };
        to_response(outcome.await)
    }

    async fn list_hot_tablets(
        &self,
        request: Request<admin::ListHotTabletsRequest>,
    ) -> Result<Response<admin::ListHotTabletsResponse>, Status> {
        to_response(Box::pin(self.hot_tablets(request.into_inner())).await)
    }

    async fn get_iam_policy(
        &self,
        request: Request<admin::iam::GetIamPolicyRequest>,
    ) -> Result<Response<admin::iam::Policy>, Status> {
        policies::answer_get(&self.handle, request).await
    }

    async fn set_iam_policy(
        &self,
        request: Request<admin::iam::SetIamPolicyRequest>,
    ) -> Result<Response<admin::iam::Policy>, Status> {
        policies::answer_set(&self.handle, request).await
    }

    async fn test_iam_permissions(
        &self,
        request: Request<admin::iam::TestIamPermissionsRequest>,
    ) -> Result<Response<admin::iam::TestIamPermissionsResponse>, Status> {
        policies::answer_test(request)
    }
}
