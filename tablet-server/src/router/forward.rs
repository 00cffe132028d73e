//! The two legs of [`Router`]: a call into this server's tablets, or a message to another server.
//!
//! Messages are handed on as they are; their payloads are shared bytes, so the short cut copies no row.

use std::time::Duration;

use ebla_client::{CallError, ReadStream, Target, Transport};
use ebla_proto::tablet as wire;
use futures::future::BoxFuture;

use super::Router;
use super::plan::{Way, way};

impl Transport for Router {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ReadRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        match way(self.home, target) {
            Way::Here => Box::pin(self.local.read(request, limit)),
            Way::There => self.remote.read(target, request, limit),
        }
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: wire::WriteRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::WriteReply, CallError>> {
        match way(self.home, target) {
            Way::Here => Box::pin(self.local.write(request, limit)),
            Way::There => self.remote.write(target, request, limit),
        }
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: wire::CheckRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::CheckReply, CallError>> {
        match way(self.home, target) {
            Way::Here => Box::pin(self.local.check(request, limit)),
            Way::There => self.remote.check(target, request, limit),
        }
    }

    fn modify<'a>(
        &'a self,
        target: &'a Target,
        request: wire::ModifyRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::ModifyReply, CallError>> {
        match way(self.home, target) {
            Way::Here => Box::pin(self.local.modify(request, limit)),
            Way::There => self.remote.modify(target, request, limit),
        }
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: wire::SampleRequest,
        limit: Duration,
    ) -> BoxFuture<'a, Result<wire::SampleReply, CallError>> {
        match way(self.home, target) {
            Way::Here => Box::pin(std::future::ready(self.local.sample(&request))),
            Way::There => self.remote.sample(target, request, limit),
        }
    }
}
