//! The legs of [`Router`]: a call into this server's tablets or a neighbour's, or a message to another process.
//!
//! Messages are handed on as they are; their payloads are shared bytes, so a short cut copies and encodes no row.

use std::time::Duration;

use ebla_client::{CallError, ReadStream, Target, Transport};
use ebla_proto::tablet as wire;
use futures::future::BoxFuture;

use super::Router;
use super::neighbours::Door;
use super::plan::{Way, way};

impl Router {
    /// The way in without a wire, where there is one.
    fn door(&self, target: &Target) -> Option<Door> {
        match way(self.home, target) {
            Way::Here => Some(Door::own(&self.local)),
            Way::There => self.neighbours.find(target.server),
        }
    }
}

impl Transport for Router {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ReadRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        match self.door(target) {
            Some(door) => Box::pin(async move {
                let stream = door.or_gone(door.local().read(request, limit)).await?;
                Ok(door.until_gone(stream))
            }),
            None => self.remote.read(target, request, limit),
        }
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: wire::WriteRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::WriteReply, CallError>> {
        match self.door(target) {
            Some(door) => Box::pin(async move { door.or_gone(door.local().write(request, limit)).await }),
            None => self.remote.write(target, request, limit),
        }
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: wire::CheckRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::CheckReply, CallError>> {
        match self.door(target) {
            Some(door) => Box::pin(async move { door.or_gone(door.local().check(request, limit)).await }),
            None => self.remote.check(target, request, limit),
        }
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ModifyRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::ModifyReply, CallError>> {
        match self.door(target) {
            Some(door) => Box::pin(async move { door.or_gone(door.local().modify(request, limit)).await }),
            None => self.remote.modify(target, request, limit),
        }
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: wire::SampleRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::SampleReply, CallError>> {
        match self.door(target) {
            Some(door) => Box::pin(async move { door.or_gone(door.local().sample(request)).await }),
            None => self.remote.sample(target, request, limit),
        }
    }
}
