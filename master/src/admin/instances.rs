//! google.bigtable.admin.v2.BigtableInstanceAdmin: instances, clusters and app profiles, in a system in which every project and
//! instance exists.

use std::collections::BTreeMap;

use ebla_model::app_profile::AppProfileName;
use ebla_model::error::{Error, Reason};
use ebla_model::instance::{Instance, InstanceName, Instances as Parent, ProjectName};
use ebla_proto::admin::{self, longrunning};
use ebla_proto::convert::app_profile::app_profile_from_admin;
use ebla_proto::convert::instance::{
    cluster_to_admin, instance_from_admin, instance_to_admin, timestamp, unsaid_instance_to_admin, update_cluster,
    update_instance,
};
use ebla_proto::services::bigtable_instance_admin_server::BigtableInstanceAdmin;
use tonic::{Request, Response, Status};

use super::desk::{Desk, answer};
use super::page::{Asked, page};
use crate::office::Office;
use crate::{finished, instances, profiles};

/// The service, for as long as the process lives: in office or not.
#[derive(Debug)]
pub(crate) struct Instances {
    desk: Desk,
}

impl Instances {
    pub(crate) const fn new(desk: Desk) -> Self {
        Self { desk }
    }

    async fn list(&self, request: admin::ListInstancesRequest) -> Result<admin::ListInstancesResponse, Error> {
        let project: ProjectName = request.parent.parse()?;
        let known = instances::list(&self.desk.office()?, &project).await?;
        let shown = known.iter().map(|(name, created)| instance(name, created.as_ref())).collect();
        Ok(admin::ListInstancesResponse { instances: shown, ..Default::default() })
    }

    async fn cluster(&self, name: &str) -> Result<admin::Cluster, Error> {
        let office = self.desk.office()?;
        let (of, id) = in_instance(name)?;
        let created = instances::find(&office, &of).await?;
        check_cluster(&of, id, created.as_ref())?;
        cluster_of(&office, &of, created.as_ref()).await
    }

    async fn clusters(&self, parent: &str) -> Result<admin::ListClustersResponse, Error> {
        let office = self.desk.office()?;
        let mut clusters = Vec::new();
        for (name, created) in &instances::among(&office, &parent.parse()?).await? {
            clusters.push(cluster_of(&office, name, created.as_ref()).await?);
        }
        Ok(admin::ListClustersResponse { clusters, ..Default::default() })
    }

    async fn profiles(&self, request: admin::ListAppProfilesRequest) -> Result<admin::ListAppProfilesResponse, Error> {
        let office = self.desk.office()?;
        let parent: Parent = request.parent.parse()?;
        let prefix = match &parent {
            Parent::One(name) => format!("{name}/appProfiles/"),
            Parent::All(project) => format!("{project}/instances/"),
        };
        let all = profiles::list(&office, &parent).await?;
        let named: BTreeMap<_, _> = all.into_iter().map(|profile| (profile.name.clone(), profile)).collect();
        let asked = Asked { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (app_profiles, next_page_token) = page(named, asked)?;
        Ok(admin::ListAppProfilesResponse { app_profiles, next_page_token, ..Default::default() })
    }
}

fn instance(name: &InstanceName, created: Option<&Instance>) -> admin::Instance {
    created.map_or_else(|| unsaid_instance_to_admin(name), instance_to_admin)
}

async fn cluster_of(office: &Office, name: &InstanceName, created: Option<&Instance>) -> Result<admin::Cluster, Error> {
    Ok(cluster_to_admin(name, &instances::cluster(office, created).await?))
}

/// The two parts of a cluster's name.
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
    let message = format!("cluster {id:?} does not exist in {of}: its one cluster is {present:?}");
    Err(Error::new(Reason::NotFound, message))
}

async fn create(office: Office, request: admin::CreateInstanceRequest) -> Result<longrunning::Operation, Error> {
    let asked = office.runtime().clock.wall();
    let project: ProjectName = request.parent.parse()?;
    let name = InstanceName::from_parts(project.id(), &request.instance_id)?;
    let instance = instance_from_admin(&request, name, asked)?;
    instances::create(&office, &instance).await?;
    let metadata = admin::CreateInstanceMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(asked)),
        finish_time: Some(timestamp(office.runtime().clock.wall())),
    };
    finished::keep(&office, &instance.name.to_string(), &metadata, &instance_to_admin(&instance)).await
}

async fn update(office: Office, request: admin::PartialUpdateInstanceRequest) -> Result<longrunning::Operation, Error> {
    let asked = office.runtime().clock.wall();
    let wanted =
        request.instance.clone().ok_or_else(|| Error::invalid("instance is missing: name the one to update"))?;
    let name: InstanceName = wanted.name.parse()?;
    let mask = request.update_mask.clone().unwrap_or_default().paths;
    let updated = instances::update(&office, &name, |present| update_instance(present, &wanted, &mask)).await?;
    let metadata = admin::UpdateInstanceMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(asked)),
        finish_time: Some(timestamp(office.runtime().clock.wall())),
    };
    finished::keep(&office, &name.to_string(), &metadata, &instance_to_admin(&updated)).await
}

/// The older call has no mask: it sets the name that is shown, and the type if one is given.
async fn replace(office: Office, wanted: admin::Instance) -> Result<admin::Instance, Error> {
    let name: InstanceName = wanted.name.parse()?;
    let mask = ["display_name", "type"].map(str::to_owned);
    let updated = instances::update(&office, &name, |present| update_instance(present, &wanted, &mask)).await?;
    Ok(instance_to_admin(&updated))
}

/// Changes the one cluster of an instance.
async fn resize(office: &Office, wanted: &admin::Cluster, mask: &[String]) -> Result<admin::Cluster, Error> {
    let (name, id) = in_instance(&wanted.name)?;
    check_cluster(&name, id, instances::find(office, &name).await?.as_ref())?;
    let change = |present: &Instance| {
        check_cluster(&name, id, Some(present))?;
        update_cluster(present, wanted, mask)
    };
    let updated = instances::update(office, &name, change).await?;
    Ok(cluster_to_admin(&name, &updated.cluster))
}

async fn update_whole_cluster(office: Office, wanted: admin::Cluster) -> Result<longrunning::Operation, Error> {
    let asked = office.runtime().clock.wall();
    let updated = resize(&office, &wanted, &["serve_nodes".to_owned()]).await?;
    let metadata = admin::UpdateClusterMetadata {
        original_request: Some(wanted),
        request_time: Some(timestamp(asked)),
        finish_time: Some(timestamp(office.runtime().clock.wall())),
    };
    finished::keep(&office, &updated.name, &metadata, &updated).await
}

async fn update_parts_of_cluster(
    office: Office,
    request: admin::PartialUpdateClusterRequest,
) -> Result<longrunning::Operation, Error> {
    let asked = office.runtime().clock.wall();
    let wanted = request.cluster.clone().ok_or_else(|| Error::invalid("cluster is missing: name the one to update"))?;
    let mask = request.update_mask.clone().unwrap_or_default().paths;
    let updated = resize(&office, &wanted, &mask).await?;
    let metadata = admin::PartialUpdateClusterMetadata {
        original_request: Some(request),
        request_time: Some(timestamp(asked)),
        finish_time: Some(timestamp(office.runtime().clock.wall())),
    };
    finished::keep(&office, &updated.name, &metadata, &updated).await
}

async fn update_profile(
    office: Office,
    request: admin::UpdateAppProfileRequest,
) -> Result<longrunning::Operation, Error> {
    let update = request.app_profile.ok_or_else(|| Error::invalid("app_profile is missing: name the one to update"))?;
    let name: AppProfileName = update.name.parse()?;
    let mask = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
    let profile = profiles::update(&office, &name, &update, &mask).await?;
    finished::keep(&office, &profile.name, &admin::UpdateAppProfileMetadata {}, &profile).await
}

#[tonic::async_trait]
impl BigtableInstanceAdmin for Instances {
    async fn create_instance(
        &self,
        request: Request<admin::CreateInstanceRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| create(office, request)).await)
    }

    async fn get_instance(
        &self,
        request: Request<admin::GetInstanceRequest>,
    ) -> Result<Response<admin::Instance>, Status> {
        let outcome = async {
            let name: InstanceName = request.into_inner().name.parse()?;
            let created = instances::find(&self.desk.office()?, &name).await?;
            Ok(instance(&name, created.as_ref()))
        };
        answer(outcome.await)
    }

    async fn list_instances(
        &self,
        request: Request<admin::ListInstancesRequest>,
    ) -> Result<Response<admin::ListInstancesResponse>, Status> {
        answer(self.list(request.into_inner()).await)
    }

    async fn update_instance(&self, request: Request<admin::Instance>) -> Result<Response<admin::Instance>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| replace(office, request)).await)
    }

    async fn partial_update_instance(
        &self,
        request: Request<admin::PartialUpdateInstanceRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| update(office, request)).await)
    }

    async fn delete_instance(&self, request: Request<admin::DeleteInstanceRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let name: InstanceName = request.into_inner().name.parse()?;
            let delete = |office, deadline| async move { instances::delete(&office, &name, deadline).await };
            self.desk.change(delete).await
        };
        answer(outcome.await)
    }

    async fn get_cluster(
        &self,
        request: Request<admin::GetClusterRequest>,
    ) -> Result<Response<admin::Cluster>, Status> {
        answer(self.cluster(&request.into_inner().name).await)
    }

    async fn list_clusters(
        &self,
        request: Request<admin::ListClustersRequest>,
    ) -> Result<Response<admin::ListClustersResponse>, Status> {
        answer(self.clusters(&request.into_inner().parent).await)
    }

    async fn update_cluster(
        &self,
        request: Request<admin::Cluster>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| update_whole_cluster(office, request)).await)
    }

    async fn partial_update_cluster(
        &self,
        request: Request<admin::PartialUpdateClusterRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| update_parts_of_cluster(office, request)).await)
    }

    async fn create_app_profile(
        &self,
        request: Request<admin::CreateAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name = AppProfileName::new(request.parent.parse()?, &request.app_profile_id)?;
            let profile = app_profile_from_admin(name, &request.app_profile.unwrap_or_default())?;
            let create = |office, _deadline| async move { profiles::create(&office, &profile).await };
            self.desk.change(create).await
        };
        answer(outcome.await)
    }

    async fn get_app_profile(
        &self,
        request: Request<admin::GetAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        let outcome = async {
            let name = request.into_inner().name.parse()?;
            profiles::find(&self.desk.office()?, &name).await
        };
        answer(outcome.await)
    }

    async fn list_app_profiles(
        &self,
        request: Request<admin::ListAppProfilesRequest>,
    ) -> Result<Response<admin::ListAppProfilesResponse>, Status> {
        answer(self.profiles(request.into_inner()).await)
    }

    async fn update_app_profile(
        &self,
        request: Request<admin::UpdateAppProfileRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let request = request.into_inner();
        answer(self.desk.change(|office, _deadline| update_profile(office, request)).await)
    }

    async fn delete_app_profile(
        &self,
        request: Request<admin::DeleteAppProfileRequest>,
    ) -> Result<Response<()>, Status> {
        let outcome = async {
            let name = request.into_inner().name.parse()?;
            self.desk.change(|office, _deadline| async move { profiles::delete(&office, &name).await }).await
        };
        answer(outcome.await)
    }
}
