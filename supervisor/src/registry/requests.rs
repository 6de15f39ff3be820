//! What the registry is asked to add, as it was asked: nothing of it is checked yet.

use bytes::Bytes;

/// One compiled form of a module.
#[derive(Debug)]
pub struct NewVariant {
    /// Its format.
    pub format: String,
    /// Its architecture; empty for the format's default.
    pub arch: String,
    /// The name of its bytes, which were handed over before.
    pub sha256: Bytes,
}

/// A module.
#[derive(Debug)]
pub struct NewModule {
    /// Its name.
    pub name: String,
    /// Its compiled forms.
    pub variants: Vec<NewVariant>,
}

/// A module of a function.
#[derive(Debug)]
pub struct NewFunctionModule {
    /// As the configuration calls it.
    pub name: String,
    /// Its compiled forms; none for those of the registered module [`NewFunctionModule::registered`].
    pub variants: Vec<NewVariant>,
    /// The name of a registered module.
    pub registered: String,
}

/// The content of a weights buffer.
#[derive(Debug)]
pub struct NewWeight {
    /// The buffer.
    pub name: String,
    /// The name of its bytes.
    pub sha256: Bytes,
}

/// A function.
#[derive(Debug)]
pub struct NewFunction {
    /// Its name.
    pub name: String,
    /// The name of the bytes of its configuration.
    pub config_sha256: Bytes,
    /// Its modules, in any order.
    pub modules: Vec<NewFunctionModule>,
    /// Its weights, in any order.
    pub weights: Vec<NewWeight>,
    /// True if the function may take the place of another one of that name.
    pub replace: bool,
}
