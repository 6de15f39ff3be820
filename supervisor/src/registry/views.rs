//! What the registry answers: records as they are stored, with what is known about their machine code.

use std::sync::Arc;

use pappus_blueprint::kernel_info::CodeInfo;

use crate::ids::FunctionId;
use crate::store::records::{Aliases, FunctionRecord, ModuleRecord};

/// What is known about machine code, for each variant of a module: none where no device here runs it.
pub type KnownCode = Vec<Option<Arc<CodeInfo>>>;

/// A module.
#[derive(Debug)]
pub struct ModuleView {
    /// As stored.
    pub record: Arc<ModuleRecord>,
    /// What is in its variants.
    pub code: KnownCode,
}

/// Versions of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VersionList {
    /// The number of the current one; 0 where that is damaged.
    pub current: u32,
    /// Numbers of the versions that are kept besides, sorted.
    pub kept: Vec<u32>,
    /// Names of versions.
    pub aliases: Arc<Aliases>,
}

/// A function as its owner sees it.
#[derive(Debug)]
pub struct FunctionView {
    /// As stored.
    pub record: Arc<FunctionRecord>,
    /// Its configuration.
    pub config: Vec<u8>,
    /// What is in its modules; of a module whose machine code cannot be made any more, nothing.
    pub code: Vec<KnownCode>,
    /// Its versions.
    pub versions: VersionList,
}

/// A function in a list.
#[derive(Debug)]
pub enum ListedFunction {
    /// The tenant's own.
    Own {
        /// As stored.
        record: Arc<FunctionRecord>,
        /// Its versions.
        versions: VersionList,
    },
    /// Another tenant's, which granted it.
    Granted {
        /// OWNER/NAME.
        reference: Box<str>,
        /// As stored; a caller may see its inputs and outputs.
        record: Arc<FunctionRecord>,
        /// Its versions.
        versions: VersionList,
    },
}

/// A part of a list by name.
#[derive(Debug)]
pub struct Page<T> {
    /// In the order of their names.
    pub items: Vec<T>,
    /// True if further items follow.
    pub more: bool,
}

/// What a registration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// There was none of this name.
    Added,
    /// Another one of this name gave way.
    Replaced,
    /// The identical one was there.
    Unchanged,
}

/// A function that was registered.
#[derive(Debug)]
pub struct Registered {
    /// As stored.
    pub record: Arc<FunctionRecord>,
    /// What that did.
    pub registration: Registration,
    /// The names towards workers of the functions that were replaced and were in memory: its own, and those of compositions
    /// that run it.
    pub replaced: Vec<FunctionId>,
}

impl Registered {
    /// Of one that was there.
    pub(super) fn unchanged(record: Arc<FunctionRecord>) -> Self {
        Self { record, registration: Registration::Unchanged, replaced: Vec::new() }
    }
}
