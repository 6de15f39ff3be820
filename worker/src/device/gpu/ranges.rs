//! Ranges of device addresses and what is mapped into them.

use std::rc::Rc;

use super::driver::{Access, Driver, DriverError, Memory};

/// Reserved addresses; given back when dropped, by when nothing is mapped in them.
#[derive(Debug)]
pub(super) struct Reserved<D: Driver> {
    base: u64,
    bytes: u64,
    _driver: std::marker::PhantomData<D>,
}

impl<D: Driver> Reserved<D> {
    pub(super) fn new(driver: &D, bytes: u64) -> Result<Rc<Self>, D::Error> {
        Ok(Rc::new(Self { base: driver.reserve(bytes)?, bytes, _driver: std::marker::PhantomData }))
    }

    /// The first address.
    pub(super) fn base(&self) -> u64 {
        self.base
    }
}

impl<D: Driver> Drop for Reserved<D> {
    fn drop(&mut self) {
        D::free(self.base, self.bytes);
    }
}

/// A range of device addresses and what is mapped into it, from its start on without gaps.
#[derive(Debug)]
pub(super) struct AddressRange<D: Driver> {
    base: u64,
    bytes: u64,
    mapped: Vec<D::Memory>,
    // Dropped when nothing is mapped any more.
    _of: Rc<Reserved<D>>,
}

impl<D: Driver> AddressRange<D> {
    /// Reserves addresses only.
    pub(super) fn reserve(driver: &D, bytes: u64) -> Result<Self, D::Error> {
        let reserved = Reserved::new(driver, bytes)?;
        let base = reserved.base();
        Ok(Self::part(reserved, base, bytes))
    }

    /// A part of reserved addresses that no other range has.
    pub(super) fn part(of: Rc<Reserved<D>>, base: u64, bytes: u64) -> Self {
        Self { base, bytes, mapped: Vec::new(), _of: of }
    }

    /// The first address.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// How much can be mapped.
    pub(super) fn room_bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory that was mapped last.
    pub(super) fn last(&self) -> Option<&D::Memory> {
        self.mapped.last()
    }

    /// How much is mapped.
    pub(super) fn mapped_bytes(&self) -> u64 {
        self.mapped.iter().map(Memory::bytes).sum()
    }

    /// Maps memory behind what is mapped already; returns its address.
    pub(super) fn push(&mut self, driver: &D, memory: D::Memory, access: Access) -> Result<u64, D::Error> {
        let at = self.base + self.mapped_bytes();
        if at + memory.bytes() > self.base + self.bytes {
            return Err(D::Error::out_of_memory());
        }
        driver.map(at, &memory, access)?;
        self.mapped.push(memory);
        Ok(at)
    }

    /// Unmaps the memory that was mapped last, which nothing running uses.
    pub(super) fn pop(&mut self) -> Option<D::Memory> {
        let memory = self.mapped.pop()?;
        D::unmap(self.base + self.mapped_bytes(), memory.bytes());
        Some(memory)
    }
}

impl<D: Driver> Drop for AddressRange<D> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

/// A second, writable mapping of memory that may be mapped read-only elsewhere; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Window<D: Driver> {
    base: u64,
    bytes: u64,
    _driver: std::marker::PhantomData<D>,
}

impl<D: Driver> Window<D> {
    /// Maps all of `memory`. Nothing that runs may use the window when it is dropped.
    pub(super) fn open(driver: &D, memory: &D::Memory) -> Result<Self, D::Error> {
        let bytes = memory.bytes();
        let base = driver.reserve(bytes)?;
        driver.map(base, memory, Access::ReadWrite).inspect_err(|_| D::free(base, bytes))?;
        Ok(Self { base, bytes, _driver: std::marker::PhantomData })
    }

    /// The first address.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Of the memory.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<D: Driver> Drop for Window<D> {
    fn drop(&mut self) {
        D::unmap(self.base, self.bytes);
        D::free(self.base, self.bytes);
    }
}
