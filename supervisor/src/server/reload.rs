//! What changes while the supervisor serves: the configuration read again, and settings of devices.
//!
//! What flags and file say is put in force, and what they do not name stays as it is. Everything is checked before anything
//! changes.

use std::collections::HashMap;
use std::sync::Arc;

use pappus_proto::v1;

use super::reload_tenants::TenantsReloaded;
use super::request_error::RequestError;
use super::state::Server;
use crate::config::request::Selector;
use crate::config::{Config, DeviceRequest, Settings};
use crate::device::Device;
use crate::device::setup::{ChangeError, Changed};

/// Settings of a device as they are after a change.
fn settings_of(device: &Device, changes: Vec<Changed>) -> v1::DeviceSettings {
    let values = device.settings().values();
    v1::DeviceSettings {
        device: device.config.name.clone(),
        values: values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        changes: changes.into_iter().map(change).collect(),
    }
}

fn change(Changed { name, before, after, effect }: Changed) -> v1::SettingChange {
    v1::SettingChange { name: name.to_owned(), before, after, effect }
}

/// Settings that are other than before.
fn differing(before: &Settings, after: &Settings) -> Vec<v1::SettingChange> {
    let both = before.values().into_iter().zip(after.values());
    let changed = both.filter(|(before, after)| before != after);
    changed
        .map(|((name, before), (_, after))| v1::SettingChange {
            name: name.to_owned(),
            before,
            after,
            effect: String::new(),
        })
        .collect()
}

/// The request that means a device; one that names the device comes before one for all.
fn meant<'a>(requests: &'a [DeviceRequest], device: &Device) -> Option<&'a DeviceRequest> {
    let is_meant = |request: &&DeviceRequest| device.config.is_meant(&request.selector);
    let named =
        requests.iter().filter(|request| !matches!(request.selector, Selector::AllGpus(_))).find(is_meant);
    named.or_else(|| requests.iter().find(is_meant))
}

impl Server {
    /// Changes settings of a device, all or none; returns the new settings.
    pub fn set_device(
        &self,
        name: &str,
        change: &HashMap<String, String>,
    ) -> Result<v1::DeviceSettings, RequestError> {
        let mut called = self.devices.iter().filter(|device| device.config.is_called(name));
        // The beginning of a UUID may be that of several.
        let device = called.next().filter(|_| called.next().is_none());
        let device = device.ok_or_else(|| {
            let there: Vec<_> = self.devices.iter().map(|device| device.config.name.as_str()).collect();
            RequestError::NoDevice(there.join(", "))
        })?;
        // Sorted, so that several mistakes give the same message each time.
        let mut pairs: Vec<_> = change.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        pairs.sort_unstable();
        let changes = device.change_pairs(pairs).map_err(RequestError::Device)?;
        Ok(settings_of(device, changes))
    }

    /// Reads the configuration again. Connections that would be refused now, or be another tenant's, end. A file that is
    /// wrong anywhere changes nothing.
    pub fn reload(&self) -> Result<v1::Reloaded, RequestError> {
        if self.config.file.is_none() {
            return Err(RequestError::NoConfigFile);
        }
        let _one_at_a_time = self.reloads.lock();
        let read_again = || self.read_again();
        self.service_manager
            .reloading(read_again)
            .inspect_err(|why| tracing::error!("the configuration is not read again: {why}"))
    }

    fn read_again(&self) -> Result<v1::Reloaded, RequestError> {
        let again = Config::resolve(self.config.flags.clone()).map_err(RequestError::Reload)?;
        self.check_settings(&again.given).map_err(RequestError::Reload)?;
        let requests: Vec<(&Arc<Device>, &DeviceRequest)> =
            self.devices.iter().filter_map(|device| Some((device, meant(&again.devices, device)?))).collect();
        for (device, request) in &requests {
            device.check(request).map_err(RequestError::ReloadDevice)?;
        }
        let restart = self.takes_restart(&again);
        // All of it is fine.
        let before = self.settings();
        self.give_settings(&again.given).map_err(RequestError::Reload)?;
        let mut settings = differing(&before, &self.settings());
        let TenantsReloaded { access, tenants, more } = self.reload_tenants(again.tenants);
        settings.extend(access);
        // A call that came meanwhile may need what a device would not have any more: then this device stays as it is.
        let change = |(device, request): (&Arc<Device>, &DeviceRequest)| {
            Ok::<_, ChangeError>(settings_of(device, device.change(request)?))
        };
        let devices = requests.into_iter().map(change).collect::<Result<Vec<_>, _>>();
        let devices = devices.map_err(RequestError::ReloadDevice)?;
        for one in &restart {
            tracing::warn!("the configuration was changed where it takes another start: {one}");
        }
        Ok(v1::Reloaded { settings, devices, restart, tenants, more_tenants: more })
    }

    /// What of a configuration is not in force and takes another start.
    fn takes_restart(&self, again: &Config) -> Vec<String> {
        let was = &self.config;
        let own = [
            ("socket", was.socket != again.socket),
            ("admin-socket", was.admin_socket != again.admin_socket),
            ("state-dir", was.state_dir != again.state_dir),
            ("metrics", was.metrics != again.metrics),
            ("sandbox-require, worker-uid or worker-memory", was.sandbox != again.sandbox),
        ];
        let own = own.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned());
        let mut restart: Vec<String> = own.collect();
        for request in &again.devices {
            if !self.devices.iter().any(|device| device.config.is_meant(&request.selector)) {
                restart.push(format!("device {}", request.selector));
            }
        }
        for device in &self.devices {
            match meant(&again.devices, device) {
                Some(request) => restart.extend(device.fixed(request).iter().map(ToString::to_string)),
                None if again.devices.is_empty() => {}
                None => restart.push(format!("without device {}, which goes on", device.config.name)),
            }
        }
        restart
    }
}
